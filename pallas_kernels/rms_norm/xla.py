"""Normalization in plain XLA, its sums in an order that is spelled out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.reductions import row_sum


def rms_norm_xla(x: Float[Array, "*rows D"], weight: Float[Array, "*heads D"], epsilon: float, offset: float
                 ) -> Float[Array, "*rows D"]:
    """Elementwise operations."""
    wide = x.astype(jnp.float32)
    mean_square = row_sum(wide * wide) / x.shape[-1]
    normed = wide * jax.lax.rsqrt(mean_square + epsilon)[..., None]
    factors = weight.astype(jnp.float32)
    return (normed * (factors + offset if offset else factors)).astype(x.dtype)
