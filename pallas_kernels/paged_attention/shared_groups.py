"""Which decode rows read the same physical blocks: requests with a common prefix, or samples of one prompt.

Nothing is assumed about how the tables came to be: rows share a key group where their tables name the same blocks all
along it. Kernels may compute such rows together, reading keys and values once; each row's arithmetic is its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int32

from pallas_kernels.paged_attention.tiles import SHARED_TILE, blocks_per_group


@partial(jax.tree_util.register_dataclass)
@dataclass(frozen=True)
class SharedGroups:
    """A list of pieces: up to `SHARED_TILE` decode rows that read one key group together, by falling age of the group.

    Piece p is of group ``starts[p] // D``; its rows are ``order[group, i]`` for the i from ``starts[p] % D`` on where
    ``pieces[group, i] == p``. A row is in the pieces of its first ``leading`` groups, and computes the rest, which
    includes every group that is not full, alone.
    """

    order: Int32[Array, "M D"]  # per key group, the decode rows, sharers beside each other
    pieces: Int32[Array, "M D"]  # the piece that a place of ``order`` belongs to, or -1
    starts: Int32[Array, " MD"]  # for each piece, its first place in ``order``, flat; 0 from num_pieces on
    num_pieces: Int32[Array, ""]
    leading: Int32[Array, " D"]

    def members(self, piece: Int32[Array, ""]) -> tuple[Int32[Array, ""], Int32[Array, " SHARED_TILE"]]:
        """A piece's group, and its rows; D where it has fewer than `SHARED_TILE`."""
        num_rows = self.order.shape[1]
        group, first = self.starts[piece] // num_rows, self.starts[piece] % num_rows
        place = first + jnp.arange(SHARED_TILE, dtype=jnp.int32)
        inside = jnp.minimum(place, num_rows - 1)
        mine = (place < num_rows) & (self.pieces[group, inside] == piece)
        return group, jnp.where(mine, self.order[group, inside], num_rows)


def find_shared_groups(tables: Int32[Array, "D M"], lengths: Int32[Array, " D"], block_size: int) -> SharedGroups:
    """Find them among decode rows with these tables and lengths (0: no row); a sort of D numbers per group."""
    num_rows, columns = tables.shape
    per_group = blocks_per_group(block_size)
    num_groups = max(1, columns // per_group)
    tables = jnp.pad(tables, ((0, 0), (0, max(0, per_group - columns))))
    group = jnp.arange(num_groups, dtype=jnp.int32)
    full = group[:, None] < lengths // (per_group * block_size)  # [groups, D]
    blocks = tables[:, : num_groups * per_group].reshape(num_rows, num_groups, per_group).swapaxes(0, 1)

    # By the last block: a prefix that ends within the group has made the first ones equal.
    key = jnp.where(full, blocks[:, :, -1], jnp.iinfo(jnp.int32).max)
    rows = jnp.broadcast_to(jnp.arange(num_rows, dtype=jnp.int32), key.shape)
    _, order = lax.sort((key, rows), num_keys=1)
    blocks = jnp.take_along_axis(blocks, order[:, :, None], axis=1)
    full = jnp.take_along_axis(full, order, axis=1)
    same = jnp.all(blocks[:, 1:] == blocks[:, :-1], axis=2) & full[:, 1:] & full[:, :-1]
    after, before = (jnp.pad(same, ((0, 0), sides)) for sides in ((1, 0), (0, 1)))

    place_of_row = jnp.argsort(order, axis=1)
    has_partner = jnp.take_along_axis(after | before, place_of_row, axis=1)
    leading = jnp.sum(jnp.cumprod(has_partner, axis=0, dtype=jnp.int32), axis=0, dtype=jnp.int32)

    member = leading[order] > group[:, None]
    pieces, starts = _cut(member, after)
    first_places = jnp.nonzero(starts.ravel(), size=num_groups * num_rows, fill_value=0)[0].astype(jnp.int32)
    return SharedGroups(order, pieces, first_places, jnp.sum(starts, dtype=jnp.int32), leading)


def _cut(member: Bool[Array, "M D"], after: Bool[Array, "M D"]) -> tuple[Int32[Array, "M D"], Bool[Array, "M D"]]:
    """Each place's piece, or -1, and whether a piece starts there: at runs of sharers, and every `SHARED_TILE` rows."""
    follows = after & member & jnp.pad(member[:, :-1], ((0, 0), (1, 0)))
    place = jnp.broadcast_to(jnp.arange(member.shape[1], dtype=jnp.int32), member.shape)
    run_start = lax.cummax(jnp.where(follows, 0, place), axis=1)
    starts = member & ((place - run_start) % SHARED_TILE == 0)
    number = jnp.cumsum(starts.ravel(), dtype=jnp.int32).reshape(starts.shape) - 1
    return jnp.where(member, number, -1), starts
