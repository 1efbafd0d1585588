"""``Split``: how one array is spread over the devices of a mesh axis, and the way there and back."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.errors import ParameterError
from jaxllm.weights.rows import QuantizedRows, StackedLayer, joined
from jaxllm.weights.spec import ParamSpec
from pallas_kernels.quantized import FORMATS

Ranges = tuple[tuple[int, int], ...]
"""Pieces (start, stop) of an axis, one after the other. What lies beyond the axis' end is zeros."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Of an array, each device has some pieces along ``axis``, equally many numbers; without an axis, all of it.

    ranges: of each device, in the array as the model has it. The global array of the devices' parts is those pieces one
    after the other: another order than the model's where matrices are fused, and longer where parts are copied or
    padded. over: the mesh axes over which the devices lie, by default the last one; along others all have the same.
    """

    axis: int | None = None
    ranges: tuple[Ranges, ...] = ()
    over: tuple[str, ...] = ()

    @property
    def part(self) -> int:
        """Numbers along the axis on each device."""
        return sum(stop - start for start, stop in self.ranges[0])

    def keeps_order(self, length: int) -> bool:
        """Whether the devices' parts, one after the other, are an axis of that length."""
        pieces = self._pieces
        return self.axis is None or (pieces[0][0] == 0 and pieces[-1][1] == length and all(
            before[1] == after[0] for before, after in itertools.pairwise(pieces)))

    def sharding(self, mesh: jax.sharding.Mesh) -> NamedSharding:
        """The global array's."""
        names = self.over or mesh.axis_names[-1]
        return NamedSharding(mesh, PartitionSpec() if self.axis is None else PartitionSpec(
            *[None] * self.axis, names))

    def shape(self, shape: Sequence[int], *, devices: int = 1) -> tuple[int, ...]:
        """Of so many devices' parts of an array of this shape."""
        if self.axis is None:
            return tuple(shape)
        return (*shape[:self.axis], devices * self.part, *shape[self.axis + 1:])

    def put(self, array: Any, mesh: jax.sharding.Mesh) -> jax.Array:
        """The global array on a mesh: from NumPy's, each device is given its own part; one of JAX's is used
        where it is if it lies so already, and moved between devices if not."""
        sharding = self.sharding(mesh)
        shape = self.shape(array.shape, devices=len(self.ranges))
        if isinstance(array, jax.Array) and array.is_fully_addressable and not sharding.is_fully_addressable:
            array = np.asarray(array)  # every process has all of it, and each gives its own devices their parts
        if not isinstance(array, jax.Array):
            return jax.make_array_from_callback(shape, sharding, functools.partial(self._part_of, array))
        if self.axis is None or self.keeps_order(array.shape[self.axis]):
            return jax.device_put(array, sharding)
        pieces = tuple(self._pieces)
        if array.sharding.device_set != sharding.device_set:
            if len(array.sharding.device_set) == 1:
                parts = [jax.device_put(_rearranged(array, self.axis, ranges), device)
                         for ranges, device in zip(itertools.cycle(self.ranges), mesh.devices.flat, strict=False)]
                return jax.make_array_from_single_device_arrays(shape, sharding, parts)
            array = jax.device_put(array, NamedSharding(mesh, PartitionSpec()))
        return _compiled(self.axis, pieces, sharding)(array)

    def restore(self, array: jax.Array, length: int, mesh: jax.sharding.Mesh) -> jax.Array:
        """What ``put`` made the array of, ``length`` numbers along the axis; itself where that is the same."""
        if self.axis is None or self.keeps_order(length):
            return array
        places: dict[int, tuple[int, int]] = {}
        at = 0
        for start, stop in self._pieces:
            places.setdefault(start, (at, at + min(stop, length) - start))
            at += stop - start
        pieces = tuple(places[start] for start in sorted(places) if start < length)
        sharding = (self if length % len(self.ranges) == 0 else WHOLE).sharding(mesh)
        return _compiled(self.axis, pieces, sharding)(array)

    @property
    def _pieces(self) -> list[tuple[int, int]]:
        """All devices'."""
        return [piece for ranges in self.ranges for piece in ranges]

    def _part_of(self, array: np.ndarray, index: tuple[slice, ...]) -> np.ndarray:
        """The part of the device that ``index`` of the global array belongs to."""
        if self.axis is None:
            return array
        device = (index[self.axis].start or 0) // self.part
        parts = [_piece(array, self.axis, start, stop, np.pad) for start, stop in self.ranges[device]]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self.axis)


@functools.cache
def _compiled(axis: int, pieces: Ranges, sharding: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(functools.partial(_rearranged, axis=axis, pieces=pieces), out_shardings=sharding)


def _rearranged(array: jax.Array, axis: int, pieces: Ranges) -> jax.Array:
    return jnp.concatenate([_piece(array, axis, start, stop, jnp.pad) for start, stop in pieces], axis)


def _piece(array: Any, axis: int, start: int, stop: int, pad: Callable[..., Any]) -> Any:
    """A piece along an axis, zeros beyond its end."""
    piece = array[(*[slice(None)] * axis, slice(start, stop))]
    missing = stop - start - piece.shape[axis]
    return pad(piece, [(0, missing if each == axis else 0) for each in range(array.ndim)]) if missing else piece


WHOLE = Split()


def split_of(spec: ParamSpec, ranges: Callable[[str | None, int], list[Ranges] | None], path: str
             ) -> tuple[ParamSpec, Any]:
    """A parameter of a model as one device has it, and how its arrays are spread: a tree of ``Split`` like that of
    ``spec.abstract()``.

    ranges: what each device has of a logical axis of some length; ``None`` for all of it. Raises ``ParameterError``
    where rows are kept in blocks that would be cut.
    """
    cuts = [(axis, found) for axis, (name, length) in enumerate(zip(spec.axes, spec.shape, strict=True))
            if (found := ranges(name, length)) is not None]
    if not cuts:
        return spec, jax.tree.map(lambda leaf: WHOLE, spec.abstract())
    ((axis, found),) = cuts
    split = Split(axis, tuple(found))
    local = dataclasses.replace(spec, shape=split.shape(spec.shape))
    if spec.stack:
        array: Any = Split(axis + 1, split.ranges)
        return local, StackedLayer(array, WHOLE)  # type: ignore[arg-type]
    if not spec.parts:
        return local, split
    of_parts = [split] * len(spec.parts) if axis == 1 else _of_rows(spec, split, path)
    parts = local.parts if axis == 1 else tuple(
        dataclasses.replace(part, rows=each.part) for part, each in zip(spec.parts, of_parts, strict=True))
    trees = [_stored(part.kind, each, path) for part, each in zip(spec.parts, of_parts, strict=True)]
    return dataclasses.replace(local, parts=parts), joined(trees)


def _of_rows(spec: ParamSpec, split: Split, path: str) -> list[Split]:
    """How the rows of each part are spread."""
    splits, start = [], 0
    for number, part in enumerate(spec.parts):
        # What pads the last part belongs to it.
        end = start + part.rows if number < len(spec.parts) - 1 else max(stop for _, stop in split._pieces)
        ranges = tuple(tuple((max(low, start) - start, min(high, end) - start) for low, high in pieces
                             if low < end and high > start) for pieces in split.ranges)
        if len({sum(high - low for low, high in pieces) for pieces in ranges}) > 1:
            raise _cannot(path, f"{spec.kinds} in runs of rows that do not divide equally", split)
        splits.append(Split(0, ranges))
        start += part.rows
    return splits


def _stored(kind: str | None, split: Split, path: str) -> Any:
    """How the arrays of rows in one way are spread."""
    if kind is None:
        return split
    layout = FORMATS[kind]
    scale: Any = None if not layout.scaled else (split if split.axis == 0 else WHOLE)
    if split.axis == 0:
        return QuantizedRows(split, scale, kind)  # type: ignore[arg-type]
    if any(bound % layout.block for piece in split._pieces for bound in piece):
        raise _cannot(path, f"{kind}, whose blocks of {layout.block} columns would be cut", split)
    in_bytes = tuple(tuple((layout.row_bytes(low), layout.row_bytes(high)) for low, high in pieces)
                     for pieces in split.ranges)
    return QuantizedRows(Split(1, in_bytes), scale, kind)  # type: ignore[arg-type]


def _cannot(path: str, what: str, split: Split) -> ParameterError:
    return ParameterError("tensor_parallel_size", len(split.ranges), f"a number that its rows divide by: {path} is "
                          f"kept as {what}; take fewer devices, or quantization='int8' or 'none'")
