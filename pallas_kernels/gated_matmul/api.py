"""The contract of gated products."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import registry
from pallas_kernels.gated_matmul.activations import Activation, check_activation

_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def gated_matmul(
    x: Float[Array, "T I"],
    weight: Float[Array, "2F I"],
    activation: Activation = "silu",
    implementation: str | None = None,
) -> Float[Array, "T F"]:
    """``activation(x @ gate.T) * (x @ up.T)``, where gate and up are the halves of ``weight``, in x's dtype.

    With "silu" that is SwiGLU, with "gelu_tanh" GeGLU (Shazeer 2020). Both products are summed in float32 and rounded
    to the dtype, as `matmul` does; the activation and the product with it are in float32, rounded once. A row's bits do
    not depend on the other rows, their number or the number of threads.
    """
    check_activation(activation)
    if x.ndim != 2:
        raise ValueError(f"x must be [T, I], got shape {x.shape}")
    if weight.ndim != 2 or weight.shape[1] != x.shape[1] or weight.shape[0] % 2:
        raise ValueError(f"weight must be [2 * F, I] with I = {x.shape[1]}, got shape {weight.shape}")
    if x.dtype not in _DTYPES or weight.dtype != x.dtype:
        raise ValueError(f"x and weight must both be float32, bfloat16 or float16, got {x.dtype} and {weight.dtype}")
    operands = {"x": x, "weight": weight, "activation": activation}
    return registry.choose("gated_matmul", implementation, operands=operands).run(**operands)
