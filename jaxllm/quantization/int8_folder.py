"""A model as a Hugging Face folder whose matrices are in int8, in the ``compressed-tensors`` format.

The format is the one that vLLM and transformers read for weights of 8 bits beside activations of 16 ("W8A16"):
"pack-quantized", channel-wise, symmetric (``jaxllm.weights.compressed_tensors``). As they expect, embedding and head
stay plain. The numbers are those of ``quantization="int8"``, which quantizes these two while they are loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.loading import open_model
from jaxllm.quantization.output import check_target, written_whole
from jaxllm.quantization.result import Quantized
from jaxllm.quantization.rope import with_rope_scaling
from jaxllm.quantization.safetensors_writer import NewTensor, write_shards
from jaxllm.quantization.tokenizer_files import end_ids, tokenizer_files
from jaxllm.weights.compressed_tensors import quantization_config
from jaxllm.weights.gguf import GGUFSource
from jaxllm.weights.safetensors import DTYPES
from jaxllm.weights.source import ModelSource

REPLACEABLE = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "additional_chat_templates",
               "LICENSE*", "NOTICE*", "README.md")
"""Names in a folder that ``overwrite`` replaces."""

KIND = "int8"
_PLAIN = ("embedding.weight", "positions.weight", "head.weight")
_ELEMENTS_AT_ONCE = 1 << 20
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write_int8_folder(source: ModelSource, target: Path, *, overwrite: bool = False,
                      progress: Callable[[int], None] = lambda nbytes: None) -> Quantized:
    """Write ``source`` to the folder ``target``, its linear layers in int8, with its configuration and tokenizer.

    Some rows of one matrix are in memory at a time. progress: called after each tensor, with its bytes before.

    Raises ``ParameterError`` for a target that is not allowed, ``UnsupportedModelError`` for what a Hugging Face folder
    cannot say, ``CapacityError`` without room on the disk, ``CheckpointError`` for weights that are not finite.
    """
    check_target(target, [source.path], overwrite=overwrite, replaceable=REPLACEABLE)
    opened = open_model(source, "float32", quantization="none")
    plan = opened.family.weight_map(opened.model, source.tensors)
    matrices = {piece.name for path, pieces in plan.items() for piece in pieces
                if opened.model.specs[path].is_matrix and path not in _PLAIN}
    if merged := [name for name in sorted(matrices & source.tensors.keys()) if len(source.tensors[name].shape) != 2]:
        raise UnsupportedModelError(f"{source.path} keeps the matrices of all experts in one tensor, {merged[0]!r}, "
                                    "for which the format has no words; load it with quantization='int8' instead")
    if turned := [piece.name for path, pieces in plan.items() for piece in pieces if piece.name in matrices
                  and source.tensors[piece.name].shape[-1] != opened.model.specs[path].shape[1]]:
        raise UnsupportedModelError(f"{source.path} keeps matrices such as {turned[0]!r} [in, out], whose rows cannot "
                                    "be quantized one by one; load it with quantization='int8' instead")
    names = [piece.name for pieces in plan.values() for piece in pieces]
    tensors: list[NewTensor] = []
    for name in names:
        tensors += _Int8Matrix(source, name, progress).tensors if name in matrices else [_plain(source, name, progress)]
    routers = {piece.name.removesuffix(".weight") for path, pieces in plan.items() for piece in pieces
               if opened.model.specs[path].axes[0] == "router"}
    small = _configuration(source, sorted(routers)) | tokenizer_files(source)
    total = sum(tensor.nbytes for tensor in tensors)
    with written_whole(target, total + sum(map(len, small.values()))) as folder:
        folder.mkdir()
        for file, content in small.items():
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(content)
        write_shards(folder, tensors)
    before = sum(source.tensors[name].nbytes for name in names)
    return Quantized(KIND, len(matrices), len(names) - len(matrices), before, total)


class _Int8Matrix:
    """A matrix as the tensors that it becomes; writing its bytes finds its factors, which come after them."""

    def __init__(self, source: ModelSource, name: str, progress: Callable[[int], None]) -> None:
        self._source = source
        self._name = name
        self._progress = progress
        self._rows, self._columns = source.tensors[name].shape
        self._scale = np.empty(self._rows, np.float32)
        module = name.removesuffix(".weight")
        shape = np.array([self._rows, self._columns], np.int64)
        self.tensors = [
            NewTensor(f"{module}.weight_packed", "I32", (self._rows, -(-self._columns // 4)), self._packed),
            NewTensor(f"{module}.weight_scale", "F32", (self._rows, 1), lambda: [self._scale]),
            NewTensor(f"{module}.weight_shape", "I64", (2,), lambda: [shape]),
        ]

    def _packed(self) -> Iterator[np.ndarray]:
        step = max(1, _ELEMENTS_AT_ONCE // self._columns)
        for start in range(0, self._rows, step):
            stop = min(start + step, self._rows)
            codes = np.empty((stop - start, self._columns), np.uint8)
            try:
                self._source.read_int8(self._name, start, stop, codes, self._scale[start:stop])
            except OverflowError as error:
                raise CheckpointError(f"{self._source.path}: {self._name!r} cannot be quantized: {error}") from None
            # The number plus 128, as an unsigned byte.
            yield np.pad(codes ^ 128, ((0, 0), (0, -self._columns % 4)))
        self._progress(self._source.tensors[self._name].nbytes)


def _plain(source: ModelSource, name: str, progress: Callable[[int], None]) -> NewTensor:
    """A tensor as it is, or, where its type is GGUF's own, in float32, which loses nothing."""
    info, dtype = source.tensors[name], source.dtype(name)

    def data() -> Iterator[np.ndarray]:
        step = max(1, _ELEMENTS_AT_ONCE // max(1, int(np.prod(info.shape[1:]))))
        for start in range(0, info.rows, step):
            stop = min(start + step, info.rows)
            rows = np.empty((stop - start, *info.shape[1:]) if len(info.shape) > 1 else info.shape, dtype)
            source.read_rows(name, start, stop, rows)
            yield rows
        progress(info.nbytes)

    return NewTensor(name, _NAMES[dtype], info.shape, data)


def _configuration(source: ModelSource, routers: list[str]) -> dict[str, bytes]:
    """``config.json`` and ``generation_config.json``. routers: modules that are left plain, besides the head."""
    config: dict[str, Any] = with_rope_scaling(source.config, source.path)
    config["quantization_config"] = quantization_config(["lm_head", *routers])
    generation = dict(source.generation_config)
    if isinstance(source, GGUFSource):
        config["dtype"] = "bfloat16"  # the file does not say
        if ends := end_ids(source):
            generation["eos_token_id"] = ends
    files = {"config.json": config} | ({"generation_config.json": generation} if generation else {})
    return {name: json.dumps(content, indent=2).encode() + b"\n" for name, content in files.items()}
