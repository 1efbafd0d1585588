"""What the Mosaic GPU kernel of grouped products works on: tiles of rows, each of one group."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Int32

GRANULE = 8
"""Tiles begin at multiples of as many rows, which copies by TMA ask for."""

FIELDS = ("group", "first", "begin", "end")
"""Of a tile: its group, E for the rows past the last one; its first row; and which of its rows are the group's,
``begin : end``."""


def cut_into_tiles(
    group_sizes: Int32[Array, " E"], num_rows: int, num_rows_padded: int, rows: int
) -> tuple[Int32[Array, "X 4"], Int32[Array, " 1"]]:
    """Tiles of ``rows`` rows (see FIELDS), and how many there are. None reaches beyond the padded rows: the last ones
    lie further to the front, and their own rows further to their ends.

    num_rows_padded: at least ``rows``, and a multiple of GRANULE.
    """
    past = num_rows - jnp.sum(group_sizes, dtype=jnp.int32)
    sizes = jnp.append(group_sizes, past)
    starts = jnp.cumsum(sizes, dtype=jnp.int32) - sizes
    before = starts % GRANULE
    tiles = jnp.where(sizes > 0, (before + sizes + rows - 1) // rows, 0)
    ends = jnp.cumsum(tiles, dtype=jnp.int32)
    # A group's first tile can hold less than `rows` rows, and so can its last.
    tile = jnp.arange(num_rows // rows + 2 * min(sizes.shape[0], num_rows), dtype=jnp.int32)
    group = jnp.minimum(jnp.sum(ends[None, :] <= tile[:, None], axis=1, dtype=jnp.int32), sizes.shape[0] - 1)
    offset = (tile - (ends - tiles)[group]) * rows
    first = (starts - before)[group] + offset
    moved = jnp.minimum(first, num_rows_padded - rows)
    shift = first - moved
    begin = jnp.maximum(before[group] - offset, 0) + shift
    end = jnp.minimum((before + sizes)[group] - offset, rows - shift) + shift
    return jnp.stack([group, moved, begin, end], axis=1).astype(jnp.int32), ends[-1:]
