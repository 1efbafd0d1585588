"""Ragged paged attention in plain XLA: loops of data-dependent length over tiles of fixed shape.

Rows with one query ("decodes") are packed, longest first, and computed a tile of rows at a time; rows with several
("prefill chunks") a tile of queries at a time. Either kind of tile walks its keys in groups of whole blocks that begin
at absolute positions, with `online_softmax`, just as far as its longest row reaches. So the work follows the real
tokens, not the padded sizes, and a query's arithmetic is the same in whatever company it runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.paged_attention.online_softmax import State, add_group, finish, start
from pallas_kernels.paged_attention.paged_keys import PagedKeys
from pallas_kernels.paged_attention.tiles import Tiles, cut_into_tiles, decode_tile, prefill_tile
from pallas_kernels.scaled_pool import Pool


@dataclass(frozen=True)
class _Softmax:
    scale: float
    window: int | None
    chunk: int | None
    soft_cap: float | None
    sinks: Float[Array, " N"] | None
    slopes: Float[Array, " N"] | None

    def oldest(self, position: Int32[Array, " ..."]) -> Int32[Array, " ..."]:
        """The first position that queries at these see."""
        if self.chunk is not None:
            return position // self.chunk * self.chunk
        return jnp.zeros_like(position) if self.window is None else jnp.maximum(position - self.window + 1, 0)


def paged_attention_xla(
    q: Float[Array, "T N H"],
    k_pool: Pool,
    v_pool: Pool,
    metadata: PagedAttentionMetadata,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    alibi_slopes: Float[Array, " N"] | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Array | tuple[Array, Array]:
    """The contract of `paged_attention`, for any XLA backend; bitwise independent of the batch on the CPU alone."""
    if deterministic and jax.default_backend() != "cpu":
        raise ValueError("deterministic=True: what XLA computes on a GPU depends on the batch; see "
                         "registry.explain('paged_attention') for an implementation that does not")
    softmax = _Softmax(scale, window, chunk, soft_cap, sinks, alibi_slopes)
    keys = PagedKeys(k_pool, v_pool, metadata, q.dtype)
    tiles = cut_into_tiles(metadata.query_start, metadata.lengths, metadata.num_tokens_padded)
    decode, decode_lse = _decode_rows(q, keys, metadata, tiles, softmax)
    out, lse = _prefill_chunks(q, keys, metadata, tiles, softmax)
    index = tiles.decode_index
    is_decode = index >= 0
    out = jnp.where(is_decode[:, None, None], decode[index], out)
    if not return_lse:
        return out
    return out, jnp.where(is_decode[:, None], decode_lse[index], lse)


def _decode_rows(
    q: Float[Array, "T N H"], keys: PagedKeys, metadata: PagedAttentionMetadata, tiles: Tiles, softmax: _Softmax
) -> tuple[Float[Array, "Rp N H"], Float[Array, "Rp N"]]:
    """Attend from the packed rows that have one query; what lies past the last of them is zero."""
    num_heads, head_dim = q.shape[1:]
    size = decode_tile(metadata.lengths.shape[0], q.shape[0])
    repeat = num_heads // keys.num_kv_heads
    num_queries = max(2, repeat)  # one row alone would run in a different dot kernel

    def of_queries(of_heads: Float[Array, " N"] | None) -> Float[Array, "B Q"] | None:
        if of_heads is None:
            return None
        tiled = jnp.tile(of_heads.reshape(keys.num_kv_heads, repeat), (size, 1))
        return jnp.pad(tiled, ((0, 0), (0, num_queries - repeat)))

    sinks, slopes = of_queries(softmax.sinks), of_queries(softmax.slopes)

    def one_tile(tile: Int32[Array, ""], results: tuple[Array, Array]) -> tuple[Array, Array]:
        here = (tile * size,)
        rows = lax.dynamic_slice(tiles.decode_rows, here, (size,))
        tokens = lax.dynamic_slice(tiles.decode_tokens, here, (size,))
        ends = lax.dynamic_slice(tiles.decode_lengths, here, (size,))
        firsts = softmax.oldest(ends - 1)
        queries = q[tokens].reshape(size * keys.num_kv_heads, repeat, head_dim)
        queries = jnp.pad(queries, ((0, 0), (0, num_queries - repeat), (0, 0)))

        def one_group(group: Int32[Array, ""], state: State) -> State:
            part = keys.read(rows, group, firsts, ends)
            positions = part.positions
            visible = (positions >= firsts[:, None]) & (positions < ends[:, None])
            visible = jnp.repeat(visible, keys.num_kv_heads, axis=0)[:, None, :]
            back = jnp.repeat(positions - (ends[:, None] - 1), keys.num_kv_heads, axis=0)[:, None, :]
            return add_group(state, queries, part, visible, scale=softmax.scale, soft_cap=softmax.soft_cap,
                             biases=_biases(slopes, back))

        state = start(size * keys.num_kv_heads, num_queries, head_dim, sinks)
        first_group = _first_group(keys, jnp.where(ends > 0, firsts, jnp.iinfo(jnp.int32).max), softmax)
        values, lse = finish(lax.fori_loop(first_group, keys.num_groups(jnp.max(ends)), one_group, state))
        values = values[:, :repeat].reshape(size, num_heads, head_dim).astype(q.dtype)
        lse = lse[:, :repeat].reshape(size, num_heads)
        return (
            lax.dynamic_update_slice(results[0], values, (tile * size, 0, 0)),
            lax.dynamic_update_slice(results[1], lse, (tile * size, 0)),
        )

    padded = tiles.decode_rows.shape[0]
    results = jnp.zeros((padded, num_heads, head_dim), q.dtype), jnp.zeros((padded, num_heads), jnp.float32)
    return lax.fori_loop(0, (tiles.num_decodes + size - 1) // size, one_tile, results)


def _prefill_chunks(
    q: Float[Array, "T N H"], keys: PagedKeys, metadata: PagedAttentionMetadata, tiles: Tiles, softmax: _Softmax
) -> tuple[Float[Array, "T N H"], Float[Array, "T N"]]:
    """Attend from the tokens of rows that have several queries; the others are zero."""
    num_tokens, num_heads, head_dim = q.shape
    results = jnp.zeros_like(q), jnp.full((num_tokens, num_heads), -jnp.inf, jnp.float32)
    size = prefill_tile(num_tokens)
    if size < 2:
        return results
    num_kv_heads, repeat = keys.num_kv_heads, num_heads // keys.num_kv_heads

    sinks, slopes = (None if of_heads is None else jnp.repeat(of_heads.reshape(num_kv_heads, repeat), size, axis=1)
                     for of_heads in (softmax.sinks, softmax.slopes))

    def one_tile(tile: Int32[Array, ""], results: tuple[Array, Array]) -> tuple[Array, Array]:
        row, token = tiles.prefill_rows[tile], tiles.prefill_tokens[tile]
        # A tile that would stick out of q is moved back; the tokens before its own are computed and not kept.
        begin = jnp.minimum(token, num_tokens - size)
        tokens = begin + jnp.arange(size, dtype=jnp.int32)
        stop = jnp.minimum(token + size, metadata.query_start[row + 1])
        mine = (tokens >= token) & (tokens < stop)
        offset = metadata.lengths[row] - metadata.query_start[row + 1]
        at = jnp.where(mine, tokens + offset, -1)
        end = stop + offset
        oldest, first = softmax.oldest(at), softmax.oldest(token + offset)

        queries = lax.dynamic_slice(q, (begin, 0, 0), (size, num_heads, head_dim))
        queries = queries.reshape(size, num_kv_heads, repeat, head_dim).transpose(1, 2, 0, 3)
        queries = queries.reshape(num_kv_heads, repeat * size, head_dim)

        def one_group(group: Int32[Array, ""], state: State) -> State:
            part = keys.read(row[None], group, first[None], end[None])
            positions = part.positions
            visible = (positions <= at[:, None]) & (positions >= oldest[:, None])
            visible = jnp.tile(visible, (repeat, 1))[None]
            back = jnp.tile(positions - at[:, None], (repeat, 1))[None]
            return add_group(state, queries, part, visible, scale=softmax.scale, soft_cap=softmax.soft_cap,
                             biases=_biases(slopes, back))

        state = start(num_kv_heads, repeat * size, head_dim, sinks)
        values, lse = finish(lax.fori_loop(_first_group(keys, first, softmax), keys.num_groups(end), one_group, state))
        values = values.reshape(num_heads, size, head_dim).swapaxes(0, 1).astype(q.dtype)
        lse = lse.reshape(num_heads, size).swapaxes(0, 1)
        return (
            _replace_rows(results[0], values, begin, mine[:, None, None]),
            _replace_rows(results[1], lse, begin, mine[:, None]),
        )

    return lax.fori_loop(0, tiles.num_prefill_tiles, one_tile, results)


def _biases(slopes: Float[Array, "B Q"] | None, back: Int32[Array, "B Q G"]) -> Float[Array, "B Q G"] | None:
    """What ALiBi adds to the scores. back: where the keys lie, counted from the queries; 0 or less where visible."""
    return None if slopes is None else slopes[:, :, None] * back


def _first_group(keys: PagedKeys, first: Int32[Array, " ..."], softmax: _Softmax) -> Int32[Array, ""] | int:
    return 0 if softmax.window is None and softmax.chunk is None else jnp.min(first) // keys.group_stride


def _replace_rows(array: Array, rows: Array, begin: Int32[Array, ""], keep: Array) -> Array:
    start_indices = (begin,) + (0,) * (array.ndim - 1)
    old = lax.dynamic_slice(array, start_indices, rows.shape)
    return lax.dynamic_update_slice(array, jnp.where(keep, rows, old), start_indices)
