"""Gated products by the native library: the gate is applied to sums while they are in registers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.cpu.library import require
from pallas_kernels.gated_matmul.activations import ACTIVATIONS, Activation
from pallas_kernels.matmul.cpu import workspace


def unsupported(x: Array, weight: Array, activation: Activation) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    return None if x.dtype == jnp.bfloat16 else f"operands are bfloat16, not {x.dtype}"


def gated_matmul_cpu(x: Float[Array, "T I"], weight: Float[Array, "2F I"], activation: Activation
                     ) -> Float[Array, "T F"]:
    """One call, on XLA's threads."""
    call = jax.ffi.ffi_call(
        require("pallas_kernels_gated_matmul_v1"),
        (jax.ShapeDtypeStruct((x.shape[0], weight.shape[0] // 2), x.dtype), workspace(x)),
        vmap_method="sequential",
    )
    result, _ = call(x, weight, activation=ACTIVATIONS[activation])
    return result
