"""What the Mosaic GPU attention kernels work on: queries packed by kv head, and items of work.

The queries that share a kv head lie one after the other, token by token, as rows ``token * G + g``; a row of the batch
begins at a multiple of 8, so that tiles of 8 belong to one row alone. An item is a tile of these rows with the
positions that it attends to; a decode over several splits becomes an item per split.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from pallas_kernels.mosaic_gpu.tiles import PARTIAL_BYTES, AttentionTiles
from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata

GRANULE = 8
ROWS_PER_WARPGROUP = 64
ITEM_FIELDS = ("row", "packed", "num_rows", "position", "last", "low", "high", "slot")
"""Of an item: row of the batch, its first packed row, how many; position of its first and last query; the positions
``low : high`` to read; where its partial result goes, or -1 if it is whole."""


@dataclass(frozen=True)
class Sizes:
    """The static sizes of one call."""

    num_tokens: int
    num_rows: int
    num_kv_heads: int
    group: int
    head_dim: int
    tiles: AttentionTiles
    max_context: int

    @property
    def item_rows(self) -> int:
        """Packed rows of an item."""
        return self.tiles.consumers * ROWS_PER_WARPGROUP

    @property
    def packed_rows(self) -> int:
        """Packed rows of the step, and those that the last tile reads beyond."""
        filling = 0 if self.group % GRANULE == 0 else (GRANULE - 1) * min(self.num_rows, self.num_tokens)
        return -(-(self.num_tokens * self.group + filling) // GRANULE) * GRANULE + self.item_rows

    @property
    def group_rows(self) -> int:
        """Packed rows of one token."""
        return -(-self.group // GRANULE) * GRANULE

    @property
    def slot_rows(self) -> int:
        """Rows of a partial result: those of one token for all kv heads, filled up to whole tiles."""
        return -(-self.num_kv_heads * self.group_rows // ROWS_PER_WARPGROUP) * ROWS_PER_WARPGROUP

    @property
    def num_slots(self) -> int:
        """Partial results that there is room for; 0 if no row can have several splits."""
        splits = -(-self.max_context // self.tiles.split)
        if splits < 2 or self.group > ROWS_PER_WARPGROUP:
            return 0
        size = self.slot_rows * self.head_dim * 4
        return min(min(self.num_rows, self.num_tokens) * splits, max(2, PARTIAL_BYTES // size))

    @property
    def max_items(self) -> int:
        rows = min(self.num_rows, self.num_tokens)
        return self.num_tokens * self.group // self.item_rows + rows + self.num_slots


@dataclass(frozen=True)
class Work:
    """The items of a step and where queries and results lie."""

    items: Int32[Array, "I 8"]
    num_items: Int32[Array, " 1"]
    packed_token: Int32[Array, " Q"]
    """Which query each packed row is; 0 for filling."""
    packed_head: Int32[Array, " Q"]
    packed_position: Int32[Array, " Q"]
    """-1 for filling."""
    token_packed: Int32[Array, " T"]
    """The first packed row of each token."""
    token_valid: Bool[Array, " T"]
    token_merged: Int32[Array, " T"]
    """Which of the merged results a token's is, or -1."""
    merges: Int32[Array, "J 2"]
    """First slot and number of slots of each row that is split; 0 slots past the last."""


def cut_into_items(metadata: PagedAttentionMetadata, sizes: Sizes, window: int | None) -> Work:
    """Lay out a step."""
    group, split, item_rows = sizes.group, sizes.tiles.split, sizes.item_rows
    counts = metadata.query_start[1:] - metadata.query_start[:-1]
    lengths = metadata.lengths
    rows = counts * group
    padded = (rows + GRANULE - 1) // GRANULE * GRANULE
    ends = jnp.cumsum(padded)
    starts = ends - padded

    # Decodes of several splits are split, in order, while there is room.
    oldest = jnp.zeros_like(lengths) if window is None else jnp.maximum(lengths - window, 0)
    first_split = oldest // split
    wanted = jnp.where(counts == 1, (lengths + split - 1) // split - first_split, 0)
    wanted = jnp.where(wanted > 1, wanted, 0)
    is_split = (wanted > 0) & (jnp.cumsum(wanted) <= sizes.num_slots)
    splits = jnp.where(is_split, wanted, 0)
    first_slot = jnp.cumsum(splits) - splits
    merged = jnp.where(is_split, jnp.cumsum(is_split.astype(jnp.int32)) - 1, -1)

    num_items = jnp.where(is_split, splits, (rows + item_rows - 1) // item_rows)
    item_ends = jnp.cumsum(num_items)
    item = jnp.arange(sizes.max_items, dtype=jnp.int32)
    row = _owner(item_ends, item)
    part = item - (item_ends - num_items)[row]
    whole = ~is_split[row]
    offset = jnp.where(whole, part * item_rows, 0)
    num_rows = jnp.clip(rows[row] - offset, 0, item_rows)
    begin = (lengths - counts)[row]
    position = begin + offset // group
    last = begin + (offset + jnp.maximum(num_rows, 1) - 1) // group
    low = jnp.zeros_like(position) if window is None else jnp.maximum(position - window + 1, 0)
    high = last + 1
    here = first_split[row] + part
    low = jnp.where(whole, low, jnp.maximum(low, here * split))
    high = jnp.where(whole, high, jnp.minimum(high, (here + 1) * split))
    slot = jnp.where(whole, -1, first_slot[row] + part)
    items = jnp.stack([row, starts[row] + offset, num_rows, position, last, low, high, slot], axis=1)

    packed = jnp.arange(sizes.packed_rows, dtype=jnp.int32)
    packed_row = _owner(ends, packed)
    inside = packed - starts[packed_row]
    filled = (packed < ends[-1]) & (inside < rows[packed_row])
    inside = jnp.where(filled, inside, 0)
    token = jnp.where(filled, metadata.query_start[packed_row] + inside // group, 0)
    at = jnp.where(filled, (lengths - counts)[packed_row] + inside // group, -1)

    tokens = jnp.arange(sizes.num_tokens, dtype=jnp.int32)
    token_row = _owner(metadata.query_start[1:], tokens)
    valid = tokens < metadata.query_start[-1]
    token_packed = starts[token_row] + (tokens - metadata.query_start[token_row]) * group
    merges = jnp.zeros((max(1, min(sizes.num_rows, sizes.num_slots // 2)), 2), jnp.int32)
    merges = merges.at[jnp.where(is_split, merged, merges.shape[0])].set(
        jnp.stack([first_slot, splits], axis=1), mode="drop")
    return Work(
        items=items.astype(jnp.int32),
        num_items=item_ends[-1:],
        packed_token=token,
        packed_head=inside % group,
        packed_position=at,
        token_packed=jnp.where(valid, token_packed, 0),
        token_valid=valid,
        token_merged=jnp.where(valid, merged[token_row], -1),
        merges=merges,
    )


def pack_queries(q: Float[Array, "T N H"], work: Work, sizes: Sizes) -> Float[Array, "K Q H"]:
    """Queries in packed order; filling repeats some query."""
    heads = q.reshape(sizes.num_tokens, sizes.num_kv_heads, sizes.group, sizes.head_dim)
    return heads[work.packed_token, :, work.packed_head].swapaxes(0, 1)


def unpack(packed: Array, work: Work, sizes: Sizes) -> Array:
    """Results [K, Q, ...] in packed order as [T, N, ...]."""
    rows = work.token_packed[:, None] + jnp.arange(sizes.group, dtype=jnp.int32)
    values = packed[:, rows].swapaxes(0, 1)
    return values.reshape(sizes.num_tokens, sizes.num_kv_heads * sizes.group, *packed.shape[2:])


def _owner(ends: Int32[Array, " R"], index: Int32[Array, " I"]) -> Int32[Array, " I"]:
    """Whose part an index is in, of parts that end at ``ends``; the last row for an index beyond all."""
    owner = jnp.searchsorted(ends, index, side="right").astype(jnp.int32)
    return jnp.minimum(owner, ends.shape[0] - 1)
