"""Products by groups of rows as a loop over tiles: only the weights of groups that have rows are read."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int32

_FEWEST, _MOST = 8, 128


def multiply_tiles(
    x: Float[Array, "T I"],
    group_sizes: Int32[Array, " E"],
    outputs: int,
    out_dtype: np.dtype,
    product: Callable[[Float[Array, "R I"], Int32[Array, ""]], Float[Array, "R O"]],
) -> Float[Array, "T O"]:
    """``product(rows, group)`` of the rows of each group, R at a time, in ``out_dtype``; zeros past the last group.

    R is a power of two that depends on T and E alone. Rows that fill up a group's last tile are those that follow it:
    their results are written over, as tiles come in the order of their rows.
    """
    rows, groups = x.shape[0], group_sizes.shape[0]
    size = _FEWEST
    while size < _MOST and size * groups < rows:
        size *= 2
    ends = jnp.cumsum(group_sizes, dtype=jnp.int32)
    tiles = (group_sizes + size - 1) // size
    tile_ends = jnp.cumsum(tiles, dtype=jnp.int32)
    padded = jnp.pad(x, ((0, size), (0, 0)))

    def multiply(tile: Int32[Array, ""], out: Float[Array, "T+R O"]) -> Float[Array, "T+R O"]:
        group = jnp.sum(tile_ends <= tile, dtype=jnp.int32)
        first = ends[group] - group_sizes[group] + (tile - tile_ends[group] + tiles[group]) * size
        result = product(lax.dynamic_slice_in_dim(padded, first, size), group)
        return lax.dynamic_update_slice_in_dim(out, result, first, 0)

    out = lax.fori_loop(0, tile_ends[-1], multiply, jnp.zeros((rows + size, outputs), out_dtype))
    return jnp.where(jnp.arange(rows, dtype=jnp.int32)[:, None] < ends[-1], out[:rows], 0)
