"""The product in float64, on the host. For tests only."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array, Float


def matmul_oracle(x: Float[Array, "T I"], weight: Float[Array, "O I"], out_dtype: np.dtype) -> Array:
    """Exact but for one rounding to float64 per addition and one to ``out_dtype``; under ``jit`` through a callback."""
    like = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), out_dtype)
    return jax.pure_callback(lambda *operands: _product(*operands).astype(out_dtype), like, x, weight)


def _product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return np.asarray(x).astype(np.float64) @ np.asarray(weight).astype(np.float64).T
