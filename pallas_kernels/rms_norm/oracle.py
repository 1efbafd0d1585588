"""Normalization in float64, on the host. For tests only."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jaxtyping import Array, Float


def rms_norm_oracle(x: Float[Array, "*rows D"], weight: Float[Array, "*heads D"], epsilon: float, offset: float
                    ) -> Float[Array, "*rows D"]:
    """Exact but for the last rounding; under ``jit`` through a callback."""
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(functools.partial(_normed, epsilon, offset), like, x, weight)


def _normed(epsilon: float, offset: float, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    wide = np.asarray(x).astype(np.float64)
    root = np.sqrt((wide**2).mean(-1, keepdims=True) + epsilon)
    return (wide / root * (np.asarray(weight).astype(np.float64) + offset)).astype(np.asarray(x).dtype)
