"""Grouped products in Pallas for Hopper (Mosaic GPU)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int32

from pallas_kernels.grouped_matmul.mosaic_kernel import columns_of, multiply
from pallas_kernels.mosaic_gpu.device import architecture, num_multiprocessors
from pallas_kernels.mosaic_gpu.tiles import GROUPED_MATMUL, MANY_ROWS, MatmulTiles

UNIT = 64


def unsupported(x: Array, weights: Array, scales: Array | None, **others: Any) -> str | None:
    """Why operands of the contract are not taken, or ``None``."""
    if x.dtype not in (jnp.bfloat16, jnp.float16) or weights.dtype != x.dtype:
        return f"it multiplies bfloat16 or float16 by the same, not {x.dtype} by {weights.dtype}"
    if weights.shape[1] % UNIT or weights.shape[2] % UNIT:
        return f"outputs and inputs are multiples of {UNIT}, not {weights.shape[1]} and {weights.shape[2]}"
    return None if scales is None else "it takes no scales"


def grouped_matmul_pallas(
    x: Float[Array, "T I"],
    weights: Float[Array, "E O I"],
    group_sizes: Int32[Array, " E"],
    scales: Float32[Array, "E O"] | None,
    out_dtype: Any,
    *,
    tiles: MatmulTiles | None = None,
    interpret: Any = None,
) -> Float[Array, "T O"]:
    """The contract of `grouped_matmul`, without scales.

    tiles: in place of the table's, for tuning and tests.
    interpret: an ``InterpretGPUParams`` to run in JAX's interpreter.
    """
    if scales is not None:
        raise ValueError("scales must be None: weights are not quantized here")
    itemsize = jnp.dtype(out_dtype).itemsize
    if tiles is None:
        known = GROUPED_MATMUL["hopper" if interpret else architecture()]
        few = x.shape[0] < MANY_ROWS * weights.shape[0]
        tiles = known["few"] if few and columns_of(weights.shape[1], known["few"], itemsize) else known["many"]
    return multiply(x, weights, group_sizes, out_dtype, tiles=tiles,
                    num_multiprocessors=2 if interpret else num_multiprocessors(), interpret=interpret)
