"""Rotary embedding and KV write by the native library, in place."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.cpu.library import require


def unsupported(k_pool: Array, **others: Array) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    return None if k_pool.dtype == jnp.bfloat16 else f"pools are bfloat16, not {k_pool.dtype}"


def rope_kv_write_cpu(
    k_pool: Float[Array, "P K S H"],
    v_pool: Float[Array, "P K S H"],
    qkv: Float[Array, "T NKK H"],
    cos: Float[Array, "T half"],
    sin: Float[Array, "T half"],
    slots: Int32[Array, " T"],
) -> tuple[Array, Array, Array]:
    """One pass over the tokens; XLA copies pools that are not donated. A slot out of range fails."""
    heads = qkv.shape[1] - 2 * k_pool.shape[1]
    call = jax.ffi.ffi_call(
        require("pallas_kernels_rope_kv_write_v1"),
        (
            *(jax.ShapeDtypeStruct(pool.shape, pool.dtype) for pool in (k_pool, v_pool)),
            jax.ShapeDtypeStruct((qkv.shape[0], heads, qkv.shape[2]), qkv.dtype),
        ),
        input_output_aliases={0: 0, 1: 1},
        vmap_method="sequential",
    )
    k_pool, v_pool, q = call(k_pool, v_pool, qkv, cos, sin, slots)
    return k_pool, v_pool, q
