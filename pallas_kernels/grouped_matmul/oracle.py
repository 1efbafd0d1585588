"""Grouped products in float64, group by group, on the host. For tests only."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Float32, Int32


def grouped_matmul_oracle(
    x: Float[Array, "T I"],
    weights: Float[Array, "E O I"],
    group_sizes: Int32[Array, " E"],
    scales: Float32[Array, "E O"] | None,
    out_dtype: np.dtype,
) -> Array:
    """Exact but for one rounding to ``out_dtype``; under ``jit`` through a callback."""
    like = jax.ShapeDtypeStruct((x.shape[0], weights.shape[1]), out_dtype)
    arguments = (x, weights, group_sizes) if scales is None else (x, weights, group_sizes, scales)
    return jax.pure_callback(lambda *given: multiply(*map(np.asarray, given)).astype(out_dtype), like, *arguments)


def multiply(x: np.ndarray, weights: np.ndarray, group_sizes: np.ndarray, scales: Any = None) -> np.ndarray:
    """The same on numpy arrays, not rounded."""
    out = np.zeros((x.shape[0], weights.shape[1]))
    ends = np.cumsum(group_sizes)
    for group, (size, end) in enumerate(zip(group_sizes, ends, strict=True)):
        rows = slice(end - size, end)
        out[rows] = x[rows].astype(np.float64) @ weights[group].astype(np.float64).T
        if scales is not None:
            out[rows] *= scales[group].astype(np.float64)
    return out
