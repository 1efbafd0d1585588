"""Grouped products by the native library: bfloat16 operands."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.cpu.library import require
from pallas_kernels.matmul import cpu as matmul_cpu


def unsupported(x: Array, weights: Array, scales: Array | None, out_dtype: np.dtype, **others: Array) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if weights.dtype != jnp.bfloat16 or scales is not None:
        return f"weights are bfloat16 without scales, not {weights.dtype}{'' if scales is None else ' with scales'}"
    return matmul_cpu.unsupported(x, weights, out_dtype)


def grouped_matmul_cpu(
    x: Float[Array, "T I"],
    weights: Float[Array, "E O I"],
    group_sizes: Int32[Array, " E"],
    scales: Float32[Array, "E O"] | None,
    out_dtype: np.dtype,
) -> Array:
    """One call, on XLA's threads: a product for each group that has rows, with `matmul`'s bits. Other weights are
    not read."""
    product = jax.ffi.ffi_call(
        require("pallas_kernels_grouped_matmul_v1"),
        (jax.ShapeDtypeStruct((x.shape[0], weights.shape[1]), out_dtype), matmul_cpu.workspace(x)),
        vmap_method="sequential",
    )
    result, _ = product(x, weights.reshape(-1, x.shape[1]), group_sizes)
    return result
