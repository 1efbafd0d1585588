"""``requantize``: a .gguf file anew, its matrices in another type."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError, ParameterError
from jaxllm.weights.gguf import GGUFSource

FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "F16": 1, "BF16": 32}
"""What matrices can be written in, and how a file that consists of them is called in it (``general.file_type``)."""

_NUMBERS_AT_ONCE = 1 << 22
_ARCHITECTURE, _ALIGNMENT, _FILE_TYPE = "general.architecture", "general.alignment", "general.file_type"


@dataclasses.dataclass(frozen=True)
class Requantized:
    """Matrices that were written in the new type, tensors that stayed as they were, and the bytes of all."""

    changed: int
    kept: int
    bytes_before: int
    bytes_after: int


def requantize(source: GGUFSource, target: Path, kind: str, *, overwrite: bool = False,
               progress: Callable[[int], None] = lambda nbytes: None) -> Requantized:
    """Write ``source`` to ``target`` with its matrices in ``kind``, quantized by the ``gguf`` package.

    Tensors of one dimension, and matrices whose rows do not divide into blocks, stay as they are; so does everything
    else that the file says, but for its type. Some rows are in memory at a time, and one quantized matrix. The file
    appears under its name when it is complete.
    progress: called after each tensor, with its bytes before.

    Raises ``ParameterError`` for another kind and for a target that is there and not to be overwritten,
    ``CheckpointError`` for a model of several files, for types that cannot be decoded, and for weights that are
    infinite or no numbers.
    """
    if kind not in FILE_TYPES:
        raise ParameterError("kind", kind, " or ".join(FILE_TYPES))
    if target.exists() and (not overwrite or target.samefile(source.path)):
        raise ParameterError("target", str(target), "a file that is not there yet, or another one with overwrite")
    if not target.parent.is_dir():
        raise ParameterError("target", str(target), "a file in a folder that exists")
    if source.metadata.get("split.count", 1) > 1:
        raise CheckpointError(f"{source.path} is one of several files of a model; merge them first")
    import gguf

    reader = gguf.GGUFReader(source.path)
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    writer = gguf.GGUFWriter(partial, source.metadata[_ARCHITECTURE])
    _copy_fields(reader, writer, kind)
    plan = [(tensor, _new_type(gguf, tensor, kind)) for tensor in reader.tensors]
    nbytes = [_add(gguf, writer, tensor, new) for tensor, new in plan]
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor, new in plan:
            writer.write_tensor_data(_data(gguf, source.path, tensor, new))
            progress(int(tensor.n_bytes))
        writer.close()
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    changed = sum(tensor.tensor_type != new for tensor, new in plan)
    return Requantized(changed, len(plan) - changed, sum(int(tensor.n_bytes) for tensor, _ in plan), sum(nbytes))


def _copy_fields(reader: Any, writer: Any, kind: str) -> None:
    """All but what the writer adds itself."""
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in (_ARCHITECTURE, _FILE_TYPE):
            continue
        if field.name == _ALIGNMENT:
            writer.add_custom_alignment(field.contents())
            continue
        element = field.types[-1] if len(field.types) > 1 else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=element)
    writer.add_file_type(FILE_TYPES[kind])


def _new_type(gguf: Any, tensor: Any, kind: str) -> Any:
    """What a tensor is written in."""
    new = gguf.GGMLQuantizationType[kind]
    block, _ = gguf.GGML_QUANT_SIZES[new]
    return new if len(tensor.shape) > 1 and int(tensor.shape[0]) % block == 0 else tensor.tensor_type


def _add(gguf: Any, writer: Any, tensor: Any, new: Any) -> int:
    """Announce a tensor; returns its bytes."""
    stored = gguf.quant_shape_to_byte_shape([int(size) for size in reversed(tensor.shape)], new)
    nbytes = math.prod(stored)
    writer.add_tensor_info(tensor.name, stored, np.dtype(np.uint8), nbytes, new)
    return nbytes


def _data(gguf: Any, path: Path, tensor: Any, new: Any) -> np.ndarray:
    """A tensor's bytes in its new type."""
    if tensor.tensor_type == new:
        return np.asarray(tensor.data)
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])
    row_bytes = gguf.quant_shape_to_byte_shape([int(tensor.shape[0])], new)[0]
    result = np.empty((len(rows), row_bytes), np.uint8)
    step = max(1, _NUMBERS_AT_ONCE // int(tensor.shape[0]))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        try:
            numbers = gguf.dequantize(rows[part], tensor.tensor_type)
        except NotImplementedError:
            raise CheckpointError(f"{path}: {tensor.name} is in {tensor.tensor_type.name}, which cannot be decoded"
                                  ) from None
        if not np.isfinite(numbers).all():
            raise CheckpointError(f"{path}: {tensor.name} has values that are infinite or no numbers")
        result[part] = gguf.quantize(numbers, new).view(np.uint8).reshape(len(numbers), row_bytes)
    return result
