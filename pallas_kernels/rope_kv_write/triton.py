"""Rotary embedding and KV write in Triton, in one pass and in place."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_write.triton import heads_unsupported, join_pools, split_pools, tokens_of_a_program
from pallas_kernels.scaled_pool import Pool, largest_of
from pallas_kernels.triton_launch import float8_unsupported, launch, power_of_two


def unsupported(k_pool: Pool, qkv: Array, **others: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    return heads_unsupported(qkv) or float8_unsupported("pools", k_pool.dtype)


def rope_kv_write_triton(
    k_pool: Pool,
    v_pool: Pool,
    qkv: Float[Array, "T NKK H"],
    cos: Float[Array, "T half"],
    sin: Float[Array, "T half"],
    slots: Int32[Array, " T"],
) -> tuple[Pool, Pool, Array]:
    """The contract of `rope_kv_write`; keys and values of padding are not written at all."""
    from pallas_kernels.kv_write.triton_kernels import rotate_and_write_heads

    tokens, all_heads, dim = qkv.shape
    kv_heads = k_pool.shape[1]
    heads = all_heads - 2 * kv_heads
    size = tokens_of_a_program(tokens)
    pools = split_pools(k_pool, v_pool)
    *written, q = launch(
        rotate_and_write_heads, {"qkv": qkv, "cos": cos, "sin": sin, "slots": slots, **pools},
        grid=(-(-tokens // size), all_heads), updated=tuple(name for name in pools if pools[name] is not None), warps=4,
        outputs={"q": jax.ShapeDtypeStruct((tokens, heads, dim), qkv.dtype)},
        constants={"NUM_TOKENS": tokens, "QUERY_HEADS": heads, "HEADS": kv_heads, "SLOTS": k_pool.shape[2],
                   "DIM": dim, "PADDED": power_of_two(dim // 2), "LARGEST": largest_of(k_pool),
                   "TOKENS": size})
    return *join_pools(tuple(written), type(k_pool)), q
