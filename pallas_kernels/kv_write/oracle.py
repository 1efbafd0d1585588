"""KV write the obvious way: one token after the other, on the host. For tests only."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int32

from pallas_kernels.scaled_pool import LARGEST, SMALLEST, Pool, ScaledPool


def kv_write_oracle(
    k_pool: Pool,
    v_pool: Pool,
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int32[Array, " T"],
) -> tuple[Pool, Pool]:
    """Write in numpy; under ``jit`` through a callback."""
    like = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), (k_pool, v_pool))
    return jax.pure_callback(write_tokens, like, k_pool, v_pool, k, v, slots)


def write_tokens(k_pool: Any, v_pool: Any, k: np.ndarray, v: np.ndarray, slots: np.ndarray) -> tuple[Any, Any]:
    """The same on numpy arrays; the last of several writes to a slot stays."""
    return _write(k_pool, np.asarray(k), slots), _write(v_pool, np.asarray(v), slots)


def _write(pool: Any, x: np.ndarray, slots: np.ndarray) -> Any:
    pool = jax.tree.map(np.array, pool)
    for token, slot in enumerate(np.asarray(slots)):
        block, offset = divmod(int(slot), pool.shape[2])
        if isinstance(pool, ScaledPool):
            for head in range(x.shape[1]):
                values, scale = quantize_head(x[token, head], pool.dtype)
                pool.values[block, head, offset], pool.scales[block, head, offset] = values, scale
        else:
            pool[block, :, offset] = x[token]
    return pool


def quantize_head(x: np.ndarray, dtype: np.dtype) -> tuple[np.ndarray, float]:
    """One head, in float64."""
    most = LARGEST[dtype]
    wide = x.astype(np.float64)
    largest = np.abs(wide).max()
    if not np.isfinite(largest):
        return np.zeros(x.shape, dtype), np.nan
    if largest < SMALLEST:
        return np.zeros(x.shape, dtype), 0.0
    scaled = wide / largest * most
    return (np.rint(scaled) if dtype == np.int8 else scaled).astype(dtype), largest / most
