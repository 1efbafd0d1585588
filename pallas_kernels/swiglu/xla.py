"""SwiGLU's gated product as one product and elementwise XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.matmul import matmul


def swiglu_xla(x: Float[Array, "T I"], weight: Float[Array, "2F I"]) -> Float[Array, "T F"]:
    """The product with both halves, by whichever implementation `matmul` has for it, then the gate."""
    return silu_times(matmul(x, weight))


def silu_times(product: Float[Array, "T 2F"]) -> Float[Array, "T F"]:
    """``silu(gate) * up`` of the halves of a product, in float32, rounded once."""
    gate, up = jnp.split(product, 2, axis=-1)
    return (jax.nn.silu(gate.astype(jnp.float32)) * up.astype(jnp.float32)).astype(product.dtype)
