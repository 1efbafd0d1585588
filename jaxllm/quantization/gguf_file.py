"""A model as a ``.gguf`` file, its matrices in one of GGUF's types, quantized by the ``gguf`` package, Q4_K here."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError
from jaxllm.quantization.gguf_model import Field, ModelTensor, gguf_model
from jaxllm.quantization.output import check_target, written_whole
from jaxllm.quantization.q4_k import quantize_q4_k
from jaxllm.quantization.result import Quantized
from jaxllm.weights.gguf import GGUFSource
from jaxllm.weights.source import ModelSource

FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "Q4_K": 14, "F16": 1, "BF16": 32}
"""What matrices can be written in, and how a file that consists of them is called in it (``general.file_type``)."""

_NUMBERS_AT_ONCE = 1 << 22
_ARCHITECTURE, _ALIGNMENT, _FILE_TYPE = "general.architecture", "general.alignment", "general.file_type"
_VERSION = "general.quantization_version"


@dataclasses.dataclass(frozen=True)
class _Planned:
    """A tensor with its new type; ``data`` makes its bytes."""

    name: str
    shape: tuple[int, ...]
    kind: Any
    changed: bool
    nbytes_before: int
    data: Callable[[], np.ndarray]

    def row_bytes(self, gguf: Any) -> tuple[int, ...]:
        """The shape in bytes, as GGUFWriter takes it."""
        return tuple(map(int, gguf.quant_shape_to_byte_shape(list(self.shape), self.kind)))


def write_gguf_file(source: ModelSource, target: Path, kind: str, *, overwrite: bool = False,
                    progress: Callable[[int], None] = lambda nbytes: None) -> Quantized:
    """Write ``source`` to ``target`` with its matrices in ``kind``, one of ``FILE_TYPES``.

    Tensors of one dimension, and matrices whose rows do not divide into blocks, keep their numbers. A GGUF file's
    metadata stay as they are, but for the file's type; a Hugging Face folder's become what ``gguf_model`` says. One
    quantized matrix is in memory at a time, and some rows of numbers.
    progress: called after each tensor, with its bytes before.

    Raises ``ParameterError`` for a target that is not allowed; ``CheckpointError`` for a model of several files, for
    types that cannot be decoded, and for weights that are infinite or no numbers; ``UnsupportedModelError`` for what
    GGUF cannot say; ``CapacityError`` without room on the disk.
    """
    check_target(target, [source.path], overwrite=overwrite)
    import gguf

    if isinstance(source, GGUFSource):
        architecture, fields, planned = _of_file(gguf, source, kind)
    else:
        model = gguf_model(source)
        architecture, fields = model.architecture, model.fields
        planned = [_of_numbers(gguf, source, tensor, kind) for tensor in model.tensors]
    sizes = [math.prod(tensor.row_bytes(gguf)) for tensor in planned]
    with written_whole(target, sum(sizes)) as partial:
        writer = gguf.GGUFWriter(partial, architecture)
        for field in fields:
            if field.name == _ALIGNMENT:
                writer.add_custom_alignment(field.value)
            else:
                writer.add_key_value(field.name, field.value, field.kind, sub_type=field.element)
        writer.add_file_type(FILE_TYPES[kind])
        if not any(field.name == _VERSION for field in fields):
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        for tensor, size in zip(planned, sizes, strict=True):
            writer.add_tensor_info(tensor.name, tensor.row_bytes(gguf), np.dtype(np.uint8), size, tensor.kind)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for tensor in planned:
                writer.write_tensor_data(tensor.data())
                progress(tensor.nbytes_before)
        finally:
            writer.close()
    changed = sum(tensor.changed for tensor in planned)
    before = sum(tensor.nbytes_before for tensor in planned)
    return Quantized(kind, changed, len(planned) - changed, before, sum(sizes))


def _of_file(gguf: Any, source: GGUFSource, kind: str) -> tuple[str, list[Field], list[_Planned]]:
    if source.metadata.get("split.count", 1) > 1:
        raise CheckpointError(f"{source.path} is one of several files of a model; merge them first")
    reader = gguf.GGUFReader(source.path)
    fields = [Field(field.name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
              for field in reader.fields.values()
              if not field.name.startswith("GGUF.") and field.name not in (_ARCHITECTURE, _FILE_TYPE)]
    # GGUFWriter adds what is left out here by itself, and cannot write lists without an element.
    fields = [field for field in fields if field.value != []]
    planned = []
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        new = _new_type(gguf, shape, kind, tensor.tensor_type)
        planned.append(_Planned(tensor.name, shape, new, new != tensor.tensor_type, int(tensor.n_bytes),
                                _stored_data(gguf, source.path, tensor, new)))
    return source.metadata[_ARCHITECTURE], fields, planned


def _stored_data(gguf: Any, path: Path, tensor: Any, new: Any) -> Callable[[], np.ndarray]:
    if tensor.tensor_type == new:
        return lambda: np.asarray(tensor.data)
    rows = tensor.data.reshape(-1, tensor.data.shape[-1])

    def numbers(start: int, stop: int) -> np.ndarray:
        try:
            return np.asarray(gguf.dequantize(rows[start:stop], tensor.tensor_type))
        except NotImplementedError:
            raise CheckpointError(f"{path}: {tensor.name} is in {tensor.tensor_type.name}, which cannot be decoded"
                                  ) from None

    return lambda: _quantized(gguf, f"{path}: {tensor.name}", numbers, len(rows), int(tensor.shape[0]), new)


def _of_numbers(gguf: Any, source: ModelSource, tensor: ModelTensor, kind: str) -> _Planned:
    """A tensor of a checkpoint whose tensors are plain; vectors are in float32, as llama.cpp needs them."""
    plain = source.dtype(tensor.source) if tensor.source else np.dtype(np.float32)
    names = {"bfloat16": "BF16", "float16": "F16"}
    kept = gguf.GGMLQuantizationType[names.get(plain.name, "F32") if len(tensor.shape) > 1 else "F32"]
    new = _new_type(gguf, tensor.shape, kind, kept)
    before = source.tensors[tensor.source].nbytes if tensor.source else 0

    def data() -> np.ndarray:
        if len(tensor.shape) < 2:
            return tensor.read(0, 1)
        rows, columns = tensor.shape
        return _quantized(gguf, f"{source.path}: {tensor.name}", tensor.read, rows, columns, new)

    return _Planned(tensor.name, tensor.shape, new, new != kept, before, data)


def _new_type(gguf: Any, shape: Sequence[int], kind: str, otherwise: Any) -> Any:
    """What a tensor is written in."""
    new = gguf.GGMLQuantizationType[kind]
    block, _ = gguf.GGML_QUANT_SIZES[new]
    return new if len(shape) > 1 and shape[-1] % block == 0 else otherwise


def _quantized(gguf: Any, where: str, numbers: Callable[[int, int], np.ndarray], rows: int, columns: int, new: Any
               ) -> np.ndarray:
    """A matrix's bytes in its new type. numbers: some of its rows, in float32."""
    row_bytes = gguf.quant_shape_to_byte_shape([columns], new)[0]
    result = np.empty((rows, row_bytes), np.uint8)
    step = max(1, _NUMBERS_AT_ONCE // columns)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        values = numbers(start, stop)
        if not np.isfinite(values).all():
            raise CheckpointError(f"{where} has values that are infinite or no numbers")
        if new.name == "F16" and np.abs(values).max(initial=0) > np.finfo(np.float16).max:
            raise CheckpointError(f"{where} has values beyond float16's range; write it as BF16")
        stored = quantize_q4_k(values) if new.name == "Q4_K" else gguf.quantize(values, new).view(np.uint8)
        result[start:stop] = stored.reshape(stop - start, row_bytes)
    return result
