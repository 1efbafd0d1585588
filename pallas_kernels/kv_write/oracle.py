"""KV write the obvious way: one token after the other, on the host. For tests only."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array, Float, Int32


def kv_write_oracle(
    k_pool: Float[Array, "P K S H"],
    v_pool: Float[Array, "P K S H"],
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int32[Array, " T"],
) -> tuple[Array, Array]:
    """Write in numpy; under ``jit`` through a callback."""
    like = (jax.ShapeDtypeStruct(k_pool.shape, k_pool.dtype), jax.ShapeDtypeStruct(v_pool.shape, v_pool.dtype))
    return jax.pure_callback(write_tokens, like, k_pool, v_pool, k, v, slots)


def write_tokens(
    k_pool: np.ndarray, v_pool: np.ndarray, k: np.ndarray, v: np.ndarray, slots: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same on numpy arrays; the last of several writes to a slot stays."""
    k_pool, v_pool = np.array(k_pool), np.array(v_pool)
    block_size = k_pool.shape[2]
    for token, slot in enumerate(np.asarray(slots)):
        block, offset = divmod(int(slot), block_size)
        k_pool[block, :, offset] = np.asarray(k)[token]
        v_pool[block, :, offset] = np.asarray(v)[token]
    return k_pool, v_pool
