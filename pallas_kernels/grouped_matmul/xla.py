"""Grouped products in plain XLA."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.grouped_matmul.tiles import multiply_tiles
from pallas_kernels.matmul import matmul


def grouped_matmul_xla(
    x: Float[Array, "T I"],
    weights: Float[Array, "E O I"],
    group_sizes: Int32[Array, " E"],
    scales: Float32[Array, "E O"] | None,
    out_dtype: np.dtype,
) -> Array:
    """A loop over tiles of at most 128 rows, each by whichever implementation `matmul` has; weights in float8 become
    numbers of x's dtype on the way."""

    def product(rows: Float[Array, "R I"], group: Int32[Array, ""]) -> Float[Array, "R O"]:
        weight = weights[group].astype(x.dtype)
        if scales is None:
            return matmul(rows, weight, out_dtype)
        return (matmul(rows, weight, jnp.float32) * scales[group]).astype(out_dtype)

    return multiply_tiles(x, group_sizes, weights.shape[1], out_dtype, product)
