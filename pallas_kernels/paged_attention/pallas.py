"""Ragged paged attention in Pallas for Hopper (Mosaic GPU): packing, the kernel, and merging what it split."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.mosaic_gpu.device import architecture, num_multiprocessors
from pallas_kernels.mosaic_gpu.tiles import ATTENTION, SCALED_ATTENTION, AttentionTiles
from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.paged_attention.mosaic_kernel import attend
from pallas_kernels.paged_attention.mosaic_merge import merge_splits
from pallas_kernels.paged_attention.mosaic_softmax import Scores
from pallas_kernels.paged_attention.mosaic_work import Sizes, cut_into_items, pack_queries, unpack
from pallas_kernels.scaled_pool import Pool, ScaledPool

BLOCK_SIZES = (16, 32, 64, 128, 256)


def unsupported(
    q: Float[Array, "T N H"], k_pool: Pool, v_pool: Pool, metadata: PagedAttentionMetadata, **options: Any
) -> str | None:
    """Why operands of the contract are not taken, or ``None``."""
    if q.dtype not in (jnp.bfloat16, jnp.float16):
        return f"it computes bfloat16 and float16, not {q.dtype}"
    if options.get("alibi_slopes") is not None:
        return "it knows no alibi_slopes"
    if metadata.stride is not None:
        return "it knows no stride of blocks"
    if options.get("chunk") is not None:
        return "it knows no chunk"
    scaled = isinstance(k_pool, ScaledPool)
    head_dims = (SCALED_ATTENTION if scaled else ATTENTION)["hopper"]
    if q.shape[2] not in head_dims:
        return f"head dims{' over pools in bytes' if scaled else ''} are {', '.join(map(str, head_dims))}, " \
               f"not {q.shape[2]}"
    if metadata.block_size not in BLOCK_SIZES:
        return f"block sizes are {', '.join(map(str, BLOCK_SIZES))}, not {metadata.block_size}"
    return None


def paged_attention_pallas(
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
    alibi_slopes: None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    tiles: AttentionTiles | None = None,
    interpret: Any = None,
) -> Array | tuple[Array, Array]:
    """The contract of `paged_attention` without alibi_slopes; what ``deterministic`` promises costs nothing here.

    tiles: in place of the table's, for tuning and tests.
    interpret: an ``InterpretGPUParams`` to run in JAX's interpreter.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_pool.shape[1:3]
    table = SCALED_ATTENTION if isinstance(k_pool, ScaledPool) else ATTENTION
    sizes = Sizes(
        num_tokens=num_tokens,
        num_rows=metadata.lengths.shape[0],
        num_kv_heads=num_kv_heads,
        group=num_heads // num_kv_heads,
        head_dim=head_dim,
        tiles=tiles or table["hopper" if interpret else architecture()][head_dim],
        max_context=metadata.tables.shape[1] * block_size,
    )
    work = cut_into_items(metadata, sizes, window)
    packed_sinks = group_sinks = None
    if sinks is not None:
        by_head = sinks.reshape(num_kv_heads, sizes.group)
        packed_sinks = by_head[:, work.packed_head]
        group_sinks = jnp.pad(by_head, ((0, 0), (0, sizes.group_rows - sizes.group)))
    results = attend(
        pack_queries(q, work, sizes),
        k_pool,
        v_pool,
        metadata.tables,
        work.items,
        work.num_items,
        work.packed_position,
        packed_sinks,
        sizes=sizes,
        scores=Scores(scale, window, soft_cap),
        num_multiprocessors=2 if interpret else num_multiprocessors(),
        interpret=interpret,
    )
    out, lse = unpack(results.out, work, sizes), unpack(results.lse, work, sizes)
    if sizes.num_slots:
        merged, merged_lse = merge_splits(
            results, work.merges, group_sinks, q.dtype, sizes=sizes, interpret=interpret)
        index = jnp.maximum(work.token_merged, 0)
        is_merged = work.token_merged >= 0
        merged = merged[index, :, : sizes.group].reshape(q.shape)
        merged_lse = merged_lse[index, :, : sizes.group].reshape(num_tokens, num_heads)
        out = jnp.where(is_merged[:, None, None], merged, out)
        lse = jnp.where(is_merged[:, None], merged_lse, lse)
    out = jnp.where(work.token_valid[:, None, None], out, 0)
    return (out, jnp.where(work.token_valid[:, None], lse, -jnp.inf)) if return_lse else out
