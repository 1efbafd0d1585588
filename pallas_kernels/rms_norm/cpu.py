"""Normalization by the native library: a row is read once from memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pallas_kernels.cpu.library import require


def unsupported(x: Array, weight: Array, epsilon: float, offset: float) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if x.dtype != jnp.bfloat16 or weight.dtype != jnp.bfloat16:
        return f"x and weight are bfloat16, not {x.dtype} and {weight.dtype}"
    return None


def rms_norm_cpu(x: Float[Array, "*rows D"], weight: Float[Array, "*heads D"], epsilon: float, offset: float
                 ) -> Float[Array, "*rows D"]:
    """One call, on XLA's threads."""
    call = jax.ffi.ffi_call(
        require("pallas_kernels_rms_norm_v1"), jax.ShapeDtypeStruct(x.shape, x.dtype), vmap_method="sequential")
    result: Array = call(x, weight, epsilon=np.float32(epsilon), offset=np.float32(offset))
    return result
