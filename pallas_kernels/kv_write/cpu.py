"""KV write by the native library, in place."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Float, Int32

from pallas_kernels.cpu.library import require
from pallas_kernels.int8_pool import Int8Pool, Pool


def unsupported(k_pool: Pool, **others: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    return "pools are plain arrays" if isinstance(k_pool, Int8Pool) else None


def kv_write_cpu(
    k_pool: Float[Array, "P K S H"],
    v_pool: Float[Array, "P K S H"],
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int32[Array, " T"],
) -> tuple[Array, Array]:
    """Copy each token's heads to its slot; XLA copies pools that are not donated. A slot out of range fails."""
    call = jax.ffi.ffi_call(
        require("pallas_kernels_kv_write_v1"),
        tuple(jax.ShapeDtypeStruct(pool.shape, pool.dtype) for pool in (k_pool, v_pool)),
        input_output_aliases={0: 0, 1: 1},
        vmap_method="sequential",
    )
    k_pool, v_pool = call(k_pool, v_pool, k, v, slots)
    return k_pool, v_pool
