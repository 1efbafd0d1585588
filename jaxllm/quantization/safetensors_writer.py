"""Safetensors files written tensor by tensor: only what is being written is in memory.

Source: https://huggingface.co/docs/safetensors, and the index that transformers' ``save_pretrained`` writes.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.weights.safetensors import DTYPES, INDEX

SHARD_BYTES = 5_000_000_000
"""How large a file may be, unless a single tensor is larger."""


@dataclasses.dataclass(frozen=True)
class NewTensor:
    """A tensor to write. dtype: as the format names it. data: makes its bytes, part after part."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], Iterable[np.ndarray]]

    @property
    def nbytes(self) -> int:
        """Bytes of the data."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


def write_shards(folder: Path, tensors: Sequence[NewTensor], shard_bytes: int = SHARD_BYTES) -> None:
    """Write the tensors as ``model.safetensors``, or as several files with an index where they are larger than
    ``shard_bytes``."""
    shards = _shards(tensors, shard_bytes)
    if len(shards) == 1:
        _write(folder / "model.safetensors", shards[0])
        return
    placed: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write(folder / name, shard)
        placed |= dict.fromkeys((tensor.name for tensor in shard), name)
    total = sum(tensor.nbytes for tensor in tensors)
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": placed}, indent=2))


def _shards(tensors: Sequence[NewTensor], most: int) -> list[list[NewTensor]]:
    shards: list[list[NewTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.nbytes > most:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    return shards


def _write(path: Path, tensors: Sequence[NewTensor]) -> None:
    # Those of the largest elements first, as the reference does, so that each is aligned.
    ordered = sorted(tensors, key=lambda tensor: -DTYPES[tensor.dtype].itemsize)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in ordered:
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape),
                               "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in ordered:
            before = file.tell()
            for part in tensor.data():
                file.write(memoryview(np.ascontiguousarray(part).reshape(-1).view(np.uint8)))
            written = file.tell() - before
            if written != tensor.nbytes:
                raise RuntimeError(f"{tensor.name} was announced with {tensor.nbytes} bytes, and has {written}")
