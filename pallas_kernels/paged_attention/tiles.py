"""The tiles of fixed size that a step's work is cut into on the XLA path.

Fixed means: a token's arithmetic happens in the same shapes, and in the same order, in whatever company it runs. The
values did well among those tried on a CPU with two cores; a machine of another kind may want others.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32

DECODE_TILE = 8
"""Most rows with a single query that are computed together."""

PREFILL_TILE = 64
"""Most consecutive queries of one row that are computed together."""

GROUP_TOKENS = 256
"""About how many consecutive keys one step of the online softmax takes."""


def decode_tile(num_rows: int, num_tokens_padded: int) -> int:
    """Rows in a decode tile; small steps take small tiles, since an unused place costs as much as a used one."""
    return max(1, min(DECODE_TILE, num_rows, num_tokens_padded // 4))


def prefill_tile(num_tokens_padded: int) -> int:
    """Queries in a prefill tile of a step of this many tokens."""
    return min(PREFILL_TILE, num_tokens_padded)


def blocks_per_group(block_size: int) -> int:
    """Blocks in a key group: about GROUP_TOKENS keys."""
    return max(1, round(GROUP_TOKENS / block_size))


class Tiles(NamedTuple):
    """The step's work as tiles of fixed size: rows with one query, and runs of queries of one row with several.

    Decode rows come sorted by falling length, so that the rows of a tile need about the same number of keys.
    """

    decode_rows: Int32[Array, " R_padded"]
    decode_tokens: Int32[Array, " R_padded"]  # where the row's query lies in q
    decode_lengths: Int32[Array, " R_padded"]  # 0 from num_decodes on
    num_decodes: Int32[Array, ""]
    decode_index: Int32[Array, " T"]  # token -> its place among the decode rows, or -1
    prefill_rows: Int32[Array, " X"]
    prefill_tokens: Int32[Array, " X"]  # first token of the tile
    num_prefill_tiles: Int32[Array, ""]


@jax.named_scope("metadata")
def cut_into_tiles(
    query_start: Int32[Array, " R_plus_1"], lengths: Int32[Array, " R"], num_tokens_padded: int
) -> Tiles:
    """Cut up a step; programs that do this for several layers do it once, as XLA sees that it is the same."""
    num_rows = lengths.shape[0]
    counts = query_start[1:] - query_start[:-1]

    is_decode = counts == 1
    num_decodes = jnp.sum(is_decode, dtype=jnp.int32)
    order = jnp.argsort(jnp.where(is_decode, -lengths, 1)).astype(jnp.int32)
    size = decode_tile(num_rows, num_tokens_padded)
    padded = -(-num_rows // size) * size
    order = jnp.pad(order, (0, padded - num_rows))
    place = jnp.arange(padded, dtype=jnp.int32)
    decode_lengths = jnp.where(place < num_decodes, lengths[order], 0)
    decode_tokens = jnp.where(place < num_decodes, query_start[order], 0)
    decode_index = jnp.full((num_tokens_padded,), -1, jnp.int32)
    target = jnp.where(place < num_decodes, decode_tokens, num_tokens_padded)
    decode_index = decode_index.at[target].set(place, mode="drop")

    size = prefill_tile(num_tokens_padded)
    capacity = min(num_rows, num_tokens_padded // 2) + num_tokens_padded // size
    tiles_per_row = jnp.where(counts > 1, -(-counts // size), 0)
    end = jnp.cumsum(tiles_per_row, dtype=jnp.int32)
    tile = jnp.arange(capacity, dtype=jnp.int32)
    row = jnp.minimum(jnp.sum(end[None, :] <= tile[:, None], axis=1, dtype=jnp.int32), num_rows - 1)
    first = query_start[row] + (tile - (end - tiles_per_row)[row]) * size
    return Tiles(order, decode_tokens, decode_lengths, num_decodes, decode_index, row, first, end[-1])
