"""Parameters as they were given to arrays on the device, in the form that an engine's programs were compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.weights.rows import RowParts, StackedLayer, int8_rows
from jaxllm.weights.spec import ParamSpec
from jaxllm.weights.trees import Given, layer_and_name


def place(specs: Mapping[str, ParamSpec], found: Mapping[str, Given]) -> dict[str, Any]:
    """The parameters by dotted path, each in the form of its spec.

    Arrays that have that form, that dtype and the device already are used as they are; others are converted. NumPy's
    are copied, as their owner can change them.
    """
    placed: dict[str, Any] = {}
    stacks: dict[str, dict[int, str]] = {}
    for path, spec in specs.items():
        layer, name = layer_and_name(path)
        if spec.stack and layer is not None:
            stacks.setdefault(name, {})[layer] = path
        else:
            placed[path] = _placed(found[path], spec)
    for paths in stacks.values():
        array = _stacked([found[paths[layer]] for layer in range(len(paths))], specs[paths[0]].dtype)
        placed |= {path: StackedLayer(array, jax.device_put(np.int32(layer))) for layer, path in paths.items()}
    return placed


def on_device(array: Any, dtype: Any) -> jax.Array:
    """An array of the dtype on the default device: itself where it is one."""
    device = jax.devices()[0]
    if not isinstance(array, jax.Array):
        return jnp.array(array, dtype)
    if array.dtype != dtype or array.weak_type:
        array = jnp.asarray(array).astype(dtype)
    # The sharding of a mesh of one device is changed to the device without a copy.
    return array if isinstance(array.sharding, jax.sharding.SingleDeviceSharding) and array.devices() == {device} else (
        jax.device_put(array, device))


def _placed(given: Given, spec: ParamSpec) -> Any:
    if given.is_quantized:
        return jax.tree.map(lambda leaf, like: on_device(leaf, like.dtype), given.leaves[0], spec.abstract())
    kinds = {part.kind for part in spec.parts}
    if not kinds:
        return _plain(given, spec.dtype)
    if kinds != {None}:
        return int8_rows(_plain(given, np.dtype(np.float32)))
    rows = [part.rows for part in spec.parts]
    if [shape[0] for shape in given.shapes] == rows and given.layer is None:
        return RowParts(tuple(_arrays(given, spec.dtype)))
    whole, ends = _plain(given, spec.dtype), np.cumsum(rows)
    return RowParts(tuple(whole[end - count:end] for end, count in zip(ends, rows, strict=True)))


def _arrays(given: Given, dtype: Any) -> list[jax.Array]:
    return [on_device(leaf if piece.transform is None else piece.transform(np.asarray(leaf)), dtype)
            for piece, leaf in zip(given.pieces, given.leaves, strict=True)]


def _plain(given: Given, dtype: Any) -> jax.Array:
    """One array, made of several or cut from all layers' where it was given so."""
    if given.layer is not None:
        return on_device(given.leaves[0][given.layer], dtype)
    arrays = _arrays(given, dtype)
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays)


def _stacked(layers: list[Given], dtype: Any) -> jax.Array:
    """All layers' arrays as one."""
    first = layers[0].leaves[0]
    if all(given.layer == number and given.leaves[0] is first for number, given in enumerate(layers)):
        return on_device(first, dtype)
    return jnp.stack([_plain(given, dtype) for given in layers])
