"""Attention of rows with several queries, a tile of consecutive queries at a time."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.paged_attention.online_softmax import Softmax, State, Visible, add_group, finish, start
from pallas_kernels.paged_attention.paged_keys import PagedKeys
from pallas_kernels.paged_attention.tiles import prefill_tile


def prefill_chunks(
    q: Float[Array, "T N H"], keys: PagedKeys, metadata: PagedAttentionMetadata, softmax: Softmax
) -> tuple[Float[Array, "T N H"], Float[Array, "T N"]]:
    """Attend from the tokens of rows that have several queries; the others are zero."""
    tiles = metadata.tiles
    num_tokens, num_heads, head_dim = q.shape
    results = jnp.zeros_like(q), jnp.full((num_tokens, num_heads), -jnp.inf, jnp.float32)
    size = prefill_tile(num_tokens)
    if size < 2:
        return results
    num_kv_heads, repeat = keys.num_kv_heads, num_heads // keys.num_kv_heads

    sinks = None
    if softmax.sinks is not None:
        sinks = jnp.repeat(softmax.sinks.reshape(num_kv_heads, repeat), size, axis=1)

    def per_query(values: Int32[Array, " size"]) -> Int32[Array, "K Q"]:
        return jnp.broadcast_to(jnp.tile(values, repeat), (num_kv_heads, repeat * size))

    def one_tile(tile: Int32[Array, ""], results: tuple[Array, Array]) -> tuple[Array, Array]:
        row, token = tiles.prefill_rows[tile], tiles.prefill_tokens[tile]
        # A tile that would stick out of q is moved back; the tokens before its own are computed and not kept.
        begin = jnp.minimum(token, num_tokens - size)
        tokens = begin + jnp.arange(size, dtype=jnp.int32)
        stop = jnp.minimum(token + size, metadata.query_start[row + 1])
        mine = (tokens >= token) & (tokens < stop)
        offset = metadata.lengths[row] - metadata.query_start[row + 1]
        last = jnp.where(mine, tokens + offset, -1)
        end = stop + offset
        first, oldest = jnp.zeros_like(end), None
        if softmax.window is not None:
            first = jnp.maximum(token + offset - softmax.window + 1, 0)
            oldest = per_query(last - softmax.window + 1)
        last = per_query(last)

        queries = lax.dynamic_slice(q, (begin, 0, 0), (size, num_heads, head_dim))
        queries = queries.reshape(size, num_kv_heads, repeat, head_dim).transpose(1, 2, 0, 3)
        queries = queries.reshape(num_kv_heads, repeat * size, head_dim)

        def one_group(group: Int32[Array, ""], state: State) -> State:
            k, v, positions = keys.read(row[None], group[None], first[None], end[None])
            return add_group(state, queries, k, v, Visible(positions, oldest, last), softmax)

        state = start(num_kv_heads, repeat * size, head_dim, sinks, softmax)
        state = lax.fori_loop(first // keys.group_size, keys.num_groups(end), one_group, state)
        values, lse = finish(state, softmax)
        values = values.reshape(num_heads, size, head_dim).swapaxes(0, 1).astype(q.dtype)
        lse = lse.reshape(num_heads, size).swapaxes(0, 1)
        return (
            _replace_rows(results[0], values, begin, mine[:, None, None]),
            _replace_rows(results[1], lse, begin, mine[:, None]),
        )

    return lax.fori_loop(0, tiles.num_prefill_tiles, one_tile, results)


def _replace_rows(array: Array, rows: Array, begin: Int32[Array, ""], keep: Array) -> Array:
    start_indices = (begin,) + (0,) * (array.ndim - 1)
    old = lax.dynamic_slice(array, start_indices, rows.shape)
    return lax.dynamic_update_slice(array, jnp.where(keep, rows, old), start_indices)
