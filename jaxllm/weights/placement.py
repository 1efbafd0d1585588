"""Parameters as they were given to arrays on the devices, in the form that an engine's programs were compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.weights.rows import RowParts, StackedLayer, int8_rows
from jaxllm.weights.spec import ParamSpec
from jaxllm.weights.trees import Given, layer_and_name

if TYPE_CHECKING:
    from jaxllm.parallel.partition import Partition


def place(partition: Partition, found: Mapping[str, Given]) -> dict[str, Any]:
    """The parameters by dotted path, each in the form of its spec, spread over the devices as ``partition`` says.

    Arrays that have that form, that dtype and lie there already are used as they are; others are converted. NumPy's are
    copied, as their owner can change them.
    """
    placed: dict[str, Any] = {}
    stacks: dict[str, dict[int, str]] = {}
    for path, spec in partition.whole.specs.items():
        layer, name = layer_and_name(path)
        if spec.stack and layer is not None:
            stacks.setdefault(name, {})[layer] = path
        else:
            placed[path] = partition.put(path, _in_form(found[path], spec, partition))
    for paths in stacks.values():
        first, specs = paths[0], partition.whole.specs
        array = _stacked([found[paths[layer]] for layer in range(len(paths))], specs[first].dtype, partition)
        array = partition.place(array, partition.splits[first].array)
        placed |= {path: StackedLayer(array, partition.place(np.int32(layer))) for layer, path in paths.items()}
    return placed


def _in_form(given: Given, spec: ParamSpec, partition: Partition) -> Any:
    if given.is_quantized:
        return jax.tree.map(lambda leaf, like: partition.converted(leaf, like.dtype), given.leaves[0], spec.abstract())
    kinds = {part.kind for part in spec.parts}
    if not kinds:
        return _plain(given, spec.dtype, partition)
    if kinds != {None}:
        return int8_rows(_plain(given, np.dtype(np.float32), partition))
    rows = [part.rows for part in spec.parts]
    if [shape[0] for shape in given.shapes] == rows and given.layer is None:
        return RowParts(tuple(_arrays(given, spec.dtype, partition)))
    whole, ends = _plain(given, spec.dtype, partition), np.cumsum(rows)
    return RowParts(tuple(whole[end - count:end] for end, count in zip(ends, rows, strict=True)))


def _arrays(given: Given, dtype: Any, partition: Partition) -> list[Any]:
    return [partition.converted(leaf if piece.transform is None else piece.transform(np.asarray(leaf)), dtype)
            for piece, leaf in zip(given.pieces, given.leaves, strict=True)]


def _plain(given: Given, dtype: Any, partition: Partition) -> Any:
    """One array, made of several or cut from all layers' where it was given so."""
    if given.layer is not None:
        return partition.converted(given.leaves[0][given.layer], dtype)
    arrays = _arrays(given, dtype, partition)
    return arrays[0] if len(arrays) == 1 else _numpy_or_jax(arrays).concatenate(arrays)


def _stacked(layers: list[Given], dtype: Any, partition: Partition) -> Any:
    """All layers' arrays as one."""
    first = layers[0].leaves[0]
    if all(given.layer == number and given.leaves[0] is first for number, given in enumerate(layers)):
        return partition.converted(first, dtype)
    arrays = [_plain(given, dtype, partition) for given in layers]
    return _numpy_or_jax(arrays).stack(arrays)


def _numpy_or_jax(arrays: list[Any]) -> Any:
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np
