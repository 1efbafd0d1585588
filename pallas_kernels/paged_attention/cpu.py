"""Ragged paged attention by the native library: bfloat16."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pallas_kernels.cpu import int8_pools
from pallas_kernels.cpu.library import require
from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.scaled_pool import Int8Pool, Pool

LARGEST_HEAD_DIM = 256


def unsupported(q: Array, k_pool: Pool, v_pool: Pool, **options: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if q.dtype != jnp.bfloat16:
        return f"queries are bfloat16, not {q.dtype}"
    if options.get("alibi_slopes") is not None:
        return "it knows no alibi_slopes"
    if getattr(options.get("metadata"), "stride", None) is not None:
        return "it knows no stride of blocks"
    if options.get("chunk") is not None:
        return "it knows no chunk"
    if q.shape[2] % 16 or q.shape[2] > LARGEST_HEAD_DIM:
        return f"head dims are multiples of 16 up to {LARGEST_HEAD_DIM}, not {q.shape[2]}"
    return int8_pools.unsupported(k_pool, v_pool)


def paged_attention_cpu(
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
) -> Array | tuple[Array, Array]:
    """The contract of `paged_attention`; blocks, lengths or row boundaries that are out of range fail the program."""
    target = "pallas_kernels_paged_attention" + ("_int8" if isinstance(k_pool, Int8Pool) else "")
    call = jax.ffi.ffi_call(
        require(f"{target}_v1" if sinks is None else f"{target}_sinks_v1"),
        (jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(q.shape[:2], jnp.float32)),
        vmap_method="sequential",
    )
    operands = [q, *jax.tree.leaves((k_pool, v_pool)), metadata.tables, metadata.query_start, metadata.lengths]
    if sinks is not None:
        operands.append(sinks)
    out, lse = call(
        *operands, scale=np.float32(scale), window=np.int64(window or 0), soft_cap=np.float32(soft_cap or 0)
    )
    return (out, lse) if return_lse else out
