"""Rotary embedding in float64 and KV write one token after the other, on the host. For tests only."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_write.oracle import write_tokens
from pallas_kernels.scaled_pool import Pool


def rope_kv_write_oracle(
    k_pool: Pool,
    v_pool: Pool,
    qkv: Float[Array, "T NKK H"],
    cos: Float[Array, "T half"],
    sin: Float[Array, "T half"],
    slots: Int32[Array, " T"],
) -> tuple[Pool, Pool, Array]:
    """Exact but for the rounding of the contract; under ``jit`` through a callback."""
    heads = qkv.shape[1] - 2 * k_pool.shape[1]
    like = (
        *jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), (k_pool, v_pool)),
        jax.ShapeDtypeStruct((qkv.shape[0], heads, qkv.shape[2]), qkv.dtype),
    )
    return jax.pure_callback(_rope_kv_write, like, k_pool, v_pool, qkv, cos, sin, slots)


def _rope_kv_write(
    k_pool: Any, v_pool: Any, qkv: np.ndarray, cos: np.ndarray, sin: np.ndarray, slots: np.ndarray
) -> tuple[Any, Any, np.ndarray]:
    qkv, kv_heads = np.asarray(qkv), k_pool.shape[1]
    heads = qkv.shape[1] - 2 * kv_heads
    first, second = np.split(qkv[:, : heads + kv_heads].astype(np.float64), 2, axis=-1)
    c, s = (np.asarray(table, np.float64)[:, None, :] for table in (cos, sin))
    rotated = np.concatenate([first * c - second * s, second * c + first * s], axis=-1).astype(qkv.dtype)
    k_pool, v_pool = write_tokens(k_pool, v_pool, rotated[:, heads:], qkv[:, heads + kv_heads :], slots)
    return k_pool, v_pool, rotated[:, :heads]
