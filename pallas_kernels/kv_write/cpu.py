"""KV write by the native library, in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.cpu import int8_pools
from pallas_kernels.cpu.library import require
from pallas_kernels.scaled_pool import Int8Pool, Pool


def unsupported(k_pool: Pool, v_pool: Pool, k: Array, v: Array, **others: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if isinstance(k_pool, Int8Pool) and not k.dtype == v.dtype == jnp.bfloat16:
        return f"what goes into pools of int8 is bfloat16, not {k.dtype} and {v.dtype}"
    return int8_pools.unsupported(k_pool, v_pool)


def kv_write_cpu(
    k_pool: Pool,
    v_pool: Pool,
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int32[Array, " T"],
) -> tuple[Pool, Pool]:
    """Copy each token's heads to its slot; XLA copies pools that are not donated. A slot out of range fails."""
    target = "kv_write_int8" if isinstance(k_pool, Int8Pool) else "kv_write"
    pools, structure = jax.tree.flatten((k_pool, v_pool))
    call = jax.ffi.ffi_call(
        require(f"pallas_kernels_{target}_v1"),
        tuple(jax.ShapeDtypeStruct(pool.shape, pool.dtype) for pool in pools),
        input_output_aliases={number: number for number in range(len(pools))},
        vmap_method="sequential",
    )
    k_pool, v_pool = jax.tree.unflatten(structure, call(*pools, k, v, slots))
    return k_pool, v_pool
