"""Grouped products in plain XLA."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32, Int32


def grouped_matmul_xla(
    x: Float[Array, "T I"],
    weights: Float[Array, "E O I"],
    group_sizes: Int32[Array, " E"],
    scales: Float32[Array, "E O"] | None,
    out_dtype: np.dtype,
) -> Array:
    """One ragged dot, over weights in the dtype of x; on CPUs and GPUs XLA multiplies every row by every weight."""
    out = lax.ragged_dot(x, weights.astype(x.dtype).swapaxes(1, 2), group_sizes, preferred_element_type=jnp.float32)
    row = jnp.arange(x.shape[0], dtype=jnp.int32)
    ends = jnp.cumsum(group_sizes, dtype=jnp.int32)
    if scales is not None:
        group = jnp.sum(ends[None, :] <= row[:, None], axis=1, dtype=jnp.int32)
        out = out * scales[jnp.minimum(group, weights.shape[0] - 1)]
    return jnp.where(row[:, None] < ends[-1], out, 0).astype(out_dtype)
