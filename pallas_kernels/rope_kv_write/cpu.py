"""Rotary embedding and KV write by the native library, in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.cpu import int8_pools
from pallas_kernels.cpu.library import require
from pallas_kernels.scaled_pool import Int8Pool, Pool


def unsupported(k_pool: Pool, v_pool: Pool, qkv: Array, **others: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if qkv.dtype != jnp.bfloat16:
        return f"qkv is bfloat16, not {qkv.dtype}"
    return int8_pools.unsupported(k_pool, v_pool)


def rope_kv_write_cpu(
    k_pool: Pool,
    v_pool: Pool,
    qkv: Float[Array, "T NKK H"],
    cos: Float[Array, "T half"],
    sin: Float[Array, "T half"],
    slots: Int32[Array, " T"],
) -> tuple[Pool, Pool, Array]:
    """One pass over the tokens; XLA copies pools that are not donated. A slot out of range fails."""
    target = "rope_kv_write_int8" if isinstance(k_pool, Int8Pool) else "rope_kv_write"
    pools, structure = jax.tree.flatten((k_pool, v_pool))
    heads = qkv.shape[1] - 2 * k_pool.shape[1]
    call = jax.ffi.ffi_call(
        require(f"pallas_kernels_{target}_v1"),
        (
            *(jax.ShapeDtypeStruct(pool.shape, pool.dtype) for pool in pools),
            jax.ShapeDtypeStruct((qkv.shape[0], heads, qkv.shape[2]), qkv.dtype),
        ),
        input_output_aliases={number: number for number in range(len(pools))},
        vmap_method="sequential",
    )
    *pools, q = call(*pools, qkv, cos, sin, slots)
    k_pool, v_pool = jax.tree.unflatten(structure, pools)
    return k_pool, v_pool, q
