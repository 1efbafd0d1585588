"""Attention of rows with one query each: a list of (row, key group) pairs, a tile of pairs at a time.

Groups that several rows read (`shared_groups`) come first, one at a time with the queries of all of them. Of the rest,
a row takes as many places in the list as it has groups, so the work is the sum of all rows' groups, and a long row
costs the short ones nothing. The pairs of a row follow each other; within a tile their maxima, then their sums, are
chained in that order, which is the arithmetic of `online_softmax.add_group` group by group.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.paged_attention import online_softmax as osm
from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.paged_attention.paged_keys import PagedKeys
from pallas_kernels.paged_attention.tiles import SHARED_TILE, decode_tile
from pallas_kernels.reductions import row_max, row_sum


def decode_rows(
    q: Float[Array, "T N H"], keys: PagedKeys, metadata: PagedAttentionMetadata, softmax: osm.Softmax
) -> tuple[Float[Array, "D N H"], Float[Array, "D N"]]:
    """Attend from the packed rows that have one query; what lies past the last of them is zero."""
    tiles = metadata.tiles
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, repeat = keys.num_kv_heads, num_heads // keys.num_kv_heads
    num_queries = max(2, repeat)  # one row alone would run in a different dot kernel
    num_rows = tiles.decode_rows.shape[0]

    queries = q[tiles.decode_tokens].reshape(num_rows, num_kv_heads, repeat, head_dim)
    queries = jnp.pad(queries, ((0, 0), (0, 0), (0, num_queries - repeat), (0, 0)))
    sinks = None
    if softmax.sinks is not None:
        sinks = jnp.pad(softmax.sinks.reshape(num_kv_heads, repeat), ((0, 0), (0, num_queries - repeat)))
        sinks = jnp.tile(sinks, (num_rows + 1, 1))
    # The last row takes what places without a pair compute.
    state = osm.start((num_rows + 1) * num_kv_heads, num_queries, head_dim, sinks, softmax)
    state = osm.State(*(array.reshape(num_rows + 1, num_kv_heads, *array.shape[1:]) for array in state))
    leading = jnp.zeros_like(tiles.decode_rows)
    if softmax.window is None:  # else most of the groups that are shared have left it
        state = _add_shared(state, queries, keys, metadata, softmax)
        leading = metadata.shared.leading
    state = _add_pairs(state, queries, keys, metadata, leading, softmax)
    state = osm.State(*(array[:num_rows, :, :repeat].reshape(num_rows, num_heads, *array.shape[3:]) for array in state))
    values, lse = osm.finish(state, softmax)
    # Apart, or XLA computes it again for every token of the step.
    return lax.optimization_barrier((values.astype(q.dtype), lse))


def _add_shared(
    state: osm.State,
    queries: Float[Array, "D K Q H"],
    keys: PagedKeys,
    metadata: PagedAttentionMetadata,
    softmax: osm.Softmax,
) -> osm.State:
    """Take in the groups that several rows read, each once for all of them."""
    num_rows, num_kv_heads, num_queries, head_dim = queries.shape
    shape = (num_kv_heads, SHARED_TILE * num_queries)

    def one_piece(piece: Int32[Array, ""], state: osm.State) -> osm.State:
        group, rows = metadata.shared.members(piece)
        end = (group + 1) * keys.group_size  # shared groups are full
        k, v, positions = keys.read(
            metadata.tiles.decode_rows[rows[:1]], group[None], jnp.zeros((1,), jnp.int32), end[None]
        )
        visible = osm.Visible(positions, None, jnp.broadcast_to(end - 1, shape))
        together = queries[jnp.minimum(rows, num_rows - 1)].swapaxes(0, 1).reshape(*shape, head_dim)
        states = osm.State(*(array[rows].swapaxes(0, 1).reshape(*shape, *array.shape[3:]) for array in state))
        states = osm.add_group(states, together, k, v, visible, softmax)
        parts = [
            array.reshape(num_kv_heads, SHARED_TILE, num_queries, *array.shape[2:]).swapaxes(0, 1) for array in states
        ]

        def put_back(index: Int32[Array, ""], state: osm.State) -> osm.State:
            return osm.State(
                *(array.at[rows[index]].set(part[index]) for array, part in zip(state, parts, strict=True))
            )

        return lax.fori_loop(0, SHARED_TILE, put_back, state)

    return lax.fori_loop(0, metadata.shared.num_pieces, one_piece, state)


def _add_pairs(
    state: osm.State,
    queries: Float[Array, "D K Q H"],
    keys: PagedKeys,
    metadata: PagedAttentionMetadata,
    leading: Int32[Array, " D"],
    softmax: osm.Softmax,
) -> osm.State:
    """Take in the groups of each row from number ``leading`` on."""
    tiles = metadata.tiles
    num_rows, num_kv_heads, num_queries, head_dim = queries.shape
    size = decode_tile(num_rows)
    ends = tiles.decode_lengths
    firsts = jnp.zeros_like(ends) if softmax.window is None else jnp.maximum(ends - softmax.window, 0)
    first_group, stop = list_pairs(firsts, ends, leading, keys.group_size)
    begin = jnp.concatenate([jnp.zeros((1,), jnp.int32), stop[:-1]])

    def one_tile(tile: Int32[Array, ""], state: osm.State) -> osm.State:
        pair = tile * size + jnp.arange(size, dtype=jnp.int32)
        place = jnp.sum(stop[None, :] <= pair[:, None], axis=1, dtype=jnp.int32)  # num_rows past the last pair
        row = jnp.minimum(place, num_rows - 1)
        group = first_group[row] + pair - begin[row]
        first, end = firsts[row], jnp.where(place < num_rows, ends[row], 0)
        k, v, positions = keys.read(tiles.decode_rows[row], group, first, end)

        shape = (size * num_kv_heads, num_queries)
        oldest = None if softmax.window is None else _per_query(first, shape)
        visible = osm.Visible(positions, oldest, _per_query(end - 1, shape))
        scores = osm.masked_scores(queries[row].reshape(*shape, head_dim), k, visible, softmax)
        largest = row_max(scores).reshape(size, num_kv_heads, num_queries)
        before, after = _running_maximum(state.largest[place], largest, place)
        factor = osm.decay(before, after, softmax)
        weights = osm.relative_weights(scores, after, softmax)
        sums = row_sum(weights).reshape(after.shape)
        values = osm.weighted_values(weights, v, num_queries).reshape(*after.shape, head_dim)
        return _chain(state, place, factor, after, sums, values)

    return lax.fori_loop(0, (stop[-1] + size - 1) // size, one_tile, state)


def list_pairs(
    firsts: Int32[Array, " D"], ends: Int32[Array, " D"], leading: Int32[Array, " D"], group_size: int
) -> tuple[Int32[Array, " D"], Int32[Array, " D"]]:
    """For rows that see the keys at ``firsts .. ends - 1``: each row's first group from number ``leading`` on, and its
    end in the list of pairs, of which the last is the length of the list."""
    first_group = jnp.maximum(firsts // group_size, leading)
    num_groups = (ends + group_size - 1) // group_size
    return first_group, jnp.cumsum(num_groups - first_group, dtype=jnp.int32)


def _per_query(values: Int32[Array, " B"], shape: tuple[int, int]) -> Int32[Array, "BK Q"]:
    return jnp.broadcast_to(jnp.repeat(values, shape[0] // values.shape[0])[:, None], shape)


def _running_maximum(
    known: Float[Array, "B K Q"], largest: Float[Array, "B K Q"], place: Int32[Array, " B"]
) -> tuple[Float[Array, "B K Q"], Float[Array, "B K Q"]]:
    """Each pair's running maximum before and after it; ``known`` are the rows' before the tile."""
    pair = jnp.arange(place.shape[0])
    earlier = (place[:, None] == place[None, :]) & (pair[:, None] > pair[None, :])
    others = jnp.where(earlier[:, :, None, None], largest[None], osm.LOWEST)
    before = jnp.maximum(known, jnp.max(others, axis=1))
    return before, jnp.maximum(before, largest)


def _chain(
    state: osm.State,
    place: Int32[Array, " B"],
    factor: Float[Array, "B K Q"],
    largest: Float[Array, "B K Q"],
    sums: Float[Array, "B K Q"],
    values: Float[Array, "B K Q H"],
) -> osm.State:
    """Bring the pairs' sums into their rows' states, one after the other."""

    def one_pair(pair: Int32[Array, ""], state: osm.State) -> osm.State:
        at = place[pair]
        total = osm.add_to_total(state.total[at], factor[pair], sums[pair])
        value = state.values[at] * factor[pair][..., None] + values[pair]
        return osm.State(
            state.largest.at[at].set(largest[pair]), state.total.at[at].set(total), state.values.at[at].set(value)
        )

    return lax.fori_loop(0, place.shape[0], one_pair, state)
