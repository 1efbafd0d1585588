"""Gated products as one product and elementwise XLA."""

from __future__ import annotations

from jaxtyping import Array, Float

from pallas_kernels.gated_matmul.activations import Activation, gate
from pallas_kernels.matmul import matmul


def gated_matmul_xla(x: Float[Array, "T I"], weight: Float[Array, "2F I"], activation: Activation
                     ) -> Float[Array, "T F"]:
    """The product with both halves, by whichever implementation `matmul` has for it, then the gate."""
    return gate(matmul(x, weight), activation)
