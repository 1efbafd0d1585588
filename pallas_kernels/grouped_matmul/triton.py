"""Grouped products in Triton: work follows the rows that there are, whatever the groups' sizes."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.gpu_tiles import matmul_tile
from pallas_kernels.matmul import triton as matmul_triton
from pallas_kernels.triton_launch import compute_capability, float8_unsupported, launch


def unsupported(x: Array, weights: Array, out_dtype: np.dtype, **others: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    return float8_unsupported("weights", weights.dtype) or matmul_triton.unsupported(x, out_dtype)


def grouped_matmul_triton(
    x: Float[Array, "T I"],
    weights: Float[Array, "E O I"],
    group_sizes: Int32[Array, " E"],
    scales: Float32[Array, "E O"] | None,
    out_dtype: np.dtype,
) -> Array:
    """The contract of `grouped_matmul`, on tensor cores; weights in float8 become numbers of x's dtype on the way."""
    from pallas_kernels.matmul.triton_kernels import multiply_groups

    rows, width = x.shape
    groups, outputs = weights.shape[:2]
    tile = matmul_tile(compute_capability())
    ends = jnp.cumsum(group_sizes, dtype=jnp.int32)
    tiles = -(-group_sizes // tile.rows)
    tile_ends = jnp.cumsum(tiles, dtype=jnp.int32)
    number = jnp.arange(min(groups, rows) + rows // tile.rows, dtype=jnp.int32)
    group = jnp.sum(tile_ends[None, :] <= number[:, None], axis=1, dtype=jnp.int32)
    inside = jnp.minimum(group, groups - 1)
    first = (ends - group_sizes)[inside] + (number - (tile_ends - tiles)[inside]) * tile.rows
    (out,) = launch(
        multiply_groups,
        {"x": x, "weights": weights, "scales": scales, "ends": ends,
         "tile_groups": jnp.where(group < groups, group, -1), "tile_rows": first,
         "out": jnp.zeros((rows, outputs), out_dtype)},
        grid=(number.shape[0], -(-outputs // tile.columns)), updated=("out",), warps=tile.warps,
        constants={"WIDTH": width, "OUTPUTS": outputs, "SCALED": scales is not None, **tile.constants()})
    return out
