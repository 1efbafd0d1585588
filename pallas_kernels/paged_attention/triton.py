"""Ragged paged attention in Triton: a kernel for rows with several queries, and two for rows with one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.gpu_tiles import AttentionTile, attention_tiles
from pallas_kernels.kv_write.triton import split_pools
from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.scaled_pool import Pool, ScaledPool
from pallas_kernels.triton_launch import FLOATS, compute_capability, float8_unsupported, launch, power_of_two

LARGEST_HEAD_DIM = 256
SMALLEST_BLOCK, LARGEST_BLOCK = 16, 256
LARGEST_GROUP = 64


def unsupported(q: Array, k_pool: Pool, v_pool: Pool, **options: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if options.get("alibi_slopes") is not None:
        return "there are no alibi_slopes"
    if getattr(options.get("metadata"), "stride", None) is not None:
        return "it knows no stride of blocks"
    if options.get("chunk") is not None:
        return "there is no chunk"
    head_dim, block_size = q.shape[2], k_pool.shape[2]
    if q.dtype not in FLOATS:
        return f"queries are bfloat16 or float16, not {q.dtype}"
    if head_dim % 16 or head_dim > LARGEST_HEAD_DIM:
        return f"head dims are multiples of 16 up to {LARGEST_HEAD_DIM}, not {head_dim}"
    if block_size & (block_size - 1) or not SMALLEST_BLOCK <= block_size <= LARGEST_BLOCK:
        return f"blocks have 16, 32, 64, 128 or 256 slots, not {block_size}"
    if q.shape[1] // k_pool.shape[1] > LARGEST_GROUP:
        return f"up to {LARGEST_GROUP} query heads share a kv head, not {q.shape[1] // k_pool.shape[1]}"
    return float8_unsupported("pools", k_pool.dtype)


def paged_attention_triton(
    q: Float[Array, "T N H"],
    k_pool: Pool,
    v_pool: Pool,
    metadata: PagedAttentionMetadata,
    *,
    scale: float,
    window: int | None = None,
    chunk: None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    alibi_slopes: Float[Array, " N"] | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Array | tuple[Array, Array]:
    """The contract of `paged_attention`.

    A query's bits do not depend on other rows, on padding or on physical blocks, and among rows with several queries
    not on their number. With ``deterministic`` rows with one query are computed as the others are.
    """
    from pallas_kernels.paged_attention import triton_kernels as kernels

    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_pool.shape[1:3]
    num_rows, width = metadata.tables.shape
    group = num_heads // num_kv_heads
    quantized = isinstance(k_pool, ScaledPool)
    tiles = attention_tiles(compute_capability(), head_dim, quantized)
    prefill = _at_least(tiles.reproducible if deterministic else tiles.prefill, group)
    decode = _at_least(tiles.reproducible if deterministic else tiles.decode, group)
    split = _split(num_rows, width * block_size, decode.keys, deterministic)

    pools = split_pools(k_pool, v_pool)
    numbers = {"scale": float(scale), "soft_cap": float(soft_cap or 0)}
    rows = {"query_start": metadata.query_start, "lengths": metadata.lengths}
    constants = {
        "WIDTH": width, "GROUP": group, "WINDOW": window or 0, "SOFT_CAP": soft_cap is not None,
        "QUANTIZED": quantized, "KV_HEADS": num_kv_heads, "SLOTS": block_size, "HEAD_DIM": head_dim,
        "PADDED": power_of_two(head_dim),
    }
    results: dict[str, Array] = {"out": jnp.zeros_like(q)}
    if return_lse:
        results["lse"] = jnp.full((num_tokens, num_heads), -jnp.inf, jnp.float32)
    names = tuple(results)

    if num_tokens > 1:
        tile_rows, tile_tokens = _cut(metadata.query_start, num_rows, num_tokens, prefill.rows // group)
        written = launch(
            kernels.ragged_attention,
            {"q": q, **pools, "sinks": sinks, "tables": metadata.tables, **rows, "tile_rows": tile_rows,
             "tile_tokens": tile_tokens, "lse": None, **results, **numbers},
            grid=(tile_rows.shape[0], num_kv_heads), updated=names, warps=prefill.warps,
            constants={**constants, "SINKS": sinks is not None, "LSE": return_lse, "ROWS": prefill.rows,
                       "KEYS": prefill.keys, "SPLIT": split if deterministic else 0, "STAGES": _stages(prefill)})
        results = dict(zip(names, written, strict=True))

    num_splits = -(-width * block_size // split)
    if window is not None:
        num_splits = min(num_splits, (window - 1) // split + 2)
    part_values, part_sums = launch(
        kernels.decode_attention,
        {"q": q, **pools, "tables": metadata.tables, **rows, **numbers},
        grid=(num_kv_heads, num_splits, num_rows), warps=decode.warps,
        outputs={"part_values": jax.ShapeDtypeStruct((num_rows, num_splits, num_heads, head_dim), jnp.float32),
                 "part_sums": jax.ShapeDtypeStruct((num_rows, num_splits, num_heads, 2), jnp.float32)},
        constants={**constants, "ROWS": decode.rows, "KEYS": decode.keys, "SPLIT": split, "SPLITS": num_splits,
                   "STAGES": _stages(decode)})
    written = launch(
        kernels.combine_splits,
        {"part_values": part_values, "part_sums": part_sums, "sinks": sinks, **rows, "lse": None,
         **results},
        grid=(num_heads, num_rows), updated=names, warps=1,
        constants={"HEADS": num_heads, "WINDOW": window or 0, "SINKS": sinks is not None, "LSE": return_lse,
                   "HEAD_DIM": head_dim, "PADDED": constants["PADDED"], "SPLIT": split, "SPLITS": num_splits})
    return (written[0], written[1]) if return_lse else written[0]


class _Tiles(NamedTuple):
    rows: Int32[Array, " X"]
    tokens: Int32[Array, " X"]


@jax.named_scope("metadata")
def _cut(query_start: Int32[Array, " R_plus_1"], num_rows: int, num_tokens: int, size: int) -> _Tiles:
    """Rows with several queries as tiles of ``size`` tokens: the row of each, or -1, and its first token."""
    counts = query_start[1:] - query_start[:-1]
    tiles = jnp.where(counts > 1, -(-counts // size), 0)
    ends = jnp.cumsum(tiles, dtype=jnp.int32)
    tile = jnp.arange(min(num_rows, num_tokens // 2) + num_tokens // size, dtype=jnp.int32)
    row = jnp.sum(ends[None, :] <= tile[:, None], axis=1, dtype=jnp.int32)
    inside = jnp.minimum(row, num_rows - 1)
    first = query_start[inside] + (tile - (ends - tiles)[inside]) * size
    return _Tiles(jnp.where(row < num_rows, row, -1), first)


def _split(num_rows: int, longest: int, keys: int, deterministic: bool) -> int:
    """Keys in a split of a decode: a power of two.

    Few rows are cut into many splits, to occupy the GPU; the partial results of all of them stay within a few dozen MB.
    With ``deterministic`` it follows from the longest context that tables have room for, not from the rows.
    """
    fewest = 512 if deterministic else 256
    most_splits = 64 if deterministic else max(8, 2048 // num_rows)
    return max(keys, power_of_two(max(fewest, math.ceil(longest / most_splits))))


def _stages(tile: AttentionTile) -> int:
    """As Triton counts them: as many again between a block's number and the block as between that and its use."""
    return 2 * tile.stages - 1


def _at_least(tile: AttentionTile, group: int) -> AttentionTile:
    """A tile that holds a token's queries of one kv head."""
    return AttentionTile(max(tile.rows, power_of_two(group)), tile.keys, tile.warps, tile.stages)

