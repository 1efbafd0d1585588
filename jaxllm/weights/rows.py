"""Parameters that are not one plain array: what they are in memory (pytrees of arrays), and as a description."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jaxllm.weights.files import empty_aligned
from jaxllm.weights.int8 import INT8, quantize_int8
from pallas_kernels.quantized import FORMATS


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QuantizedRows:
    """Rows in a format of ``pallas_kernels.quantized.FORMATS``.

    scale: a factor per row, where the format has it.
    """

    blocks: UInt8[Array, "O bytes"]
    scale: Float[Array, " O"] | None
    kind: str = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowParts:
    """Runs of rows that are stored in different ways, one after the other: ``QuantizedRows`` or plain arrays."""

    parts: tuple[Any, ...]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StackedLayer:
    """One layer's share of an array that holds all layers', as trainers that scan over layers keep them.

    array: all layers', along the first axis. layer: an int32 scalar.
    """

    array: Array
    layer: Array

    def plain(self) -> Array:
        """The layer's own; within a trace, where nothing is copied for longer than a step."""
        return jax.lax.dynamic_index_in_dim(self.array, self.layer, 0, keepdims=False)


def unstacked(params: Any) -> Any:
    """Parameters with each ``StackedLayer`` as a plain array."""
    return jax.tree.map(lambda leaf: leaf.plain() if isinstance(leaf, StackedLayer) else leaf, params,
                        is_leaf=is_stored)


@dataclasses.dataclass(frozen=True)
class StoredRows:
    """So many rows in one way.

    kind: a format of ``FORMATS``, or ``None`` for plain numbers in the parameter's dtype.
    """

    kind: str | None
    rows: int

    def nbytes(self, columns: int, itemsize: int) -> int:
        """Bytes of these rows. itemsize: bytes of a plain number."""
        if self.kind is None:
            return self.rows * columns * itemsize
        found = FORMATS[self.kind]
        return self.rows * (found.row_bytes(columns) + (4 if found.scaled else 0))

    def abstract(self, columns: int, dtype: Any) -> Any:
        """Their arrays as shapes and dtypes."""
        if self.kind is None:
            return jax.ShapeDtypeStruct((self.rows, columns), dtype)
        found = FORMATS[self.kind]
        scale: Any = jax.ShapeDtypeStruct((self.rows,), jnp.float32) if found.scaled else None
        blocks: Any = jax.ShapeDtypeStruct((self.rows, found.row_bytes(columns)), jnp.uint8)
        return QuantizedRows(blocks, scale, self.kind)


def int8_rows(rows: Any) -> QuantizedRows:
    """A matrix of numbers quantized to int8, each row by its own factor."""
    wide = np.asarray(rows, np.float32)
    codes, scale = empty_aligned(wide.shape, np.dtype(np.uint8)), empty_aligned(wide.shape[:1], np.dtype(np.float32))
    quantize_int8(wide, codes, scale)
    return QuantizedRows(jax.device_put(codes), jax.device_put(scale), INT8)


def joined(parts: list[Any]) -> Any:
    """One part as it is, several as ``RowParts``."""
    return parts[0] if len(parts) == 1 else RowParts(tuple(parts))


def is_stored(leaf: Any) -> bool:
    """Whether a tree of parameters ends here for those who see a weight as one thing."""
    return isinstance(leaf, QuantizedRows | RowParts | StackedLayer)
