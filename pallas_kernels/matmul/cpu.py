"""The product by the native library: bfloat16 operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pallas_kernels.cpu.library import require


def unsupported(x: Array, weight: Array, out_dtype: np.dtype) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if x.dtype != jnp.bfloat16:
        return f"operands are bfloat16, not {x.dtype}"
    if out_dtype not in (jnp.bfloat16, jnp.float32):
        return f"results are bfloat16 or float32, not {out_dtype}"
    return None


def matmul_cpu(x: Float[Array, "T I"], weight: Float[Array, "O I"], out_dtype: np.dtype) -> Array:
    """One call for the whole product, on XLA's threads."""
    product = jax.ffi.ffi_call(
        require("pallas_kernels_matmul_v1"),
        (jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), out_dtype), workspace(x)),
        vmap_method="sequential",
    )
    result, _ = product(x, weight)
    return result


def workspace(x: Float[Array, "T I"]) -> jax.ShapeDtypeStruct:
    """Room for ``x`` in the order that tiles read it in."""
    tokens, inputs = x.shape
    return jax.ShapeDtypeStruct((-(-tokens // 16) * -(-inputs // 32) * 1024,), jnp.uint8)
