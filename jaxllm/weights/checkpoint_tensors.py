"""A model's parameters as the tensors of a Hugging Face checkpoint: what loading does, undone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.quantization.safetensors_writer import NewTensor
from jaxllm.weights.rows import QuantizedRows, RowParts, StackedLayer, is_stored
from jaxllm.weights.safetensors import DTYPES
from jaxllm.weights.spec import ParamSpec, Piece
from jaxllm.weights.trees import flatten

if TYPE_CHECKING:
    from jaxllm.models.model import Model, Params
    from jaxllm.models.registry import Family

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def checkpoint_tensors(model: Model, family: Family, params: Params, stored: Collection[str] = ()) -> list[NewTensor]:
    """The tensors under Hugging Face's names, each made when it is written.

    params: in the model's own layout, as an engine has them. stored: the names in the checkpoint that they are from,
    which decide where a tensor has several.

    Raises ``UnsupportedModelError`` for quantized parameters, naming the first.
    """
    leaves = flatten(params)
    tensors: list[NewTensor] = []
    parts: dict[str, dict[int, NewTensor]] = {}
    for path, pieces in family.weight_map(model, stored).items():
        leaf, spec = leaves[path], model.specs[path]
        if _is_quantized(leaf):
            raise UnsupportedModelError(
                f"{path} is kept as {spec.kinds}, and a checkpoint of plain numbers would be another model: load it "
                "with quantization='none', or write quantized files with jaxllm.quantize")
        start = 0
        for piece, rows in zip(pieces, _rows(path, len(pieces), spec, model.config), strict=True):
            tensor = _tensor(piece, leaf, slice(start, start + rows), spec)
            if piece.part is None:
                tensors.append(tensor)
            else:
                parts.setdefault(piece.name, {})[piece.part] = tensor
            start += rows
    return tensors + [_joined([found[number] for number in sorted(found)]) for found in parts.values()]


def _tensor(piece: Piece, leaf: Any, rows: slice, spec: ParamSpec) -> NewTensor:
    if piece.transform is not None and piece.inverse is None:
        raise UnsupportedModelError(f"{piece.name}: how it is written is not known")

    def as_stored(part: np.ndarray) -> np.ndarray:
        return part if piece.inverse is None else piece.inverse(part)

    def data() -> Iterator[np.ndarray]:
        yield as_stored(_on_host(leaf)[rows])

    # Shapes do not depend on the values.
    empty = np.broadcast_to(np.zeros((), spec.dtype), spec.shape)[rows]
    return NewTensor(piece.name, _NAMES[spec.dtype], as_stored(empty).shape, data)


def _joined(parts: Sequence[NewTensor]) -> NewTensor:
    """A tensor of its parts, ``[groups, rows, ...]`` each: a group's rows after those of the group before it."""
    groups, _, *rest = parts[0].shape

    def data() -> Iterator[np.ndarray]:
        joined = np.concatenate([array for part in parts for array in part.data()], axis=1)
        yield joined.reshape(-1, *rest)

    shape = (groups * sum(part.shape[1] for part in parts), *rest)
    return NewTensor(parts[0].name, parts[0].dtype, shape, data)


def _rows(path: str, count: int, spec: ParamSpec, config: DecoderConfig) -> list[int]:
    """How many rows of a parameter each of the tensors that make it up has."""
    if path.split(".")[-2] == "qkv" and count == 3:
        heads = config.num_heads, config.num_kv_heads, config.num_kv_heads
        return [number * config.head_dim for number in heads]
    return [spec.shape[0] // count] * count


def _is_quantized(leaf: Any) -> bool:
    return isinstance(leaf, QuantizedRows) or (isinstance(leaf, RowParts) and any(map(is_stored, leaf.parts)))


def _on_host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, RowParts):
        return np.concatenate([_on_host(part) for part in leaf.parts])
    if isinstance(leaf, StackedLayer):
        return _on_host(leaf.array[int(leaf.layer)])
    # Of an accelerator's array JAX would keep the copy for as long as the array lives.
    return np.asarray(jax.device_put(leaf, jax.local_devices(backend="cpu")[0]))
