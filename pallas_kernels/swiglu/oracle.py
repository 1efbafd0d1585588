"""SwiGLU's gated product in float64, on the host. For tests only."""

from __future__ import annotations

import jax
import numpy as np
from jaxtyping import Array, Float


def swiglu_oracle(x: Float[Array, "T I"], weight: Float[Array, "2F I"]) -> Float[Array, "T F"]:
    """Exact but for the roundings of the contract; under ``jit`` through a callback."""
    like = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0] // 2), x.dtype)
    return jax.pure_callback(_gated, like, x, weight)


def _gated(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    x, weight = np.asarray(x), np.asarray(weight)
    product = (x.astype(np.float64) @ weight.astype(np.float64).T).astype(x.dtype).astype(np.float64)
    gate, up = np.split(product, 2, axis=-1)
    with np.errstate(over="ignore"):
        return (gate / (1 + np.exp(-gate)) * up).astype(x.dtype)
