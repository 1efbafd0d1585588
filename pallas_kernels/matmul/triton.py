"""A product with a weight in Triton, whose rows have the same bits whatever their number."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pallas_kernels.gpu_tiles import matmul_tile
from pallas_kernels.triton_launch import FLOATS, compute_capability, launch

OUT_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def unsupported(x: Array, out_dtype: np.dtype, **others: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if x.dtype not in FLOATS:
        return f"x is bfloat16 or float16, not {x.dtype}"
    if out_dtype not in OUT_DTYPES:
        return f"results are float32, bfloat16 or float16, not {out_dtype}"
    return None


def matmul_triton(x: Float[Array, "T I"], weight: Float[Array, "O I"], out_dtype: np.dtype) -> Array:
    """The contract of `matmul`, on tensor cores."""
    from pallas_kernels.matmul.triton_kernels import multiply_rows

    rows, width = x.shape
    outputs = weight.shape[0]
    tile = matmul_tile(compute_capability())
    (out,) = launch(
        multiply_rows, {"x": x, "weight": weight},
        grid=(-(-rows // tile.rows), -(-outputs // tile.columns)), warps=tile.warps,
        outputs={"out": jax.ShapeDtypeStruct((rows, outputs), out_dtype)},
        constants={"NUM_ROWS": rows, "WIDTH": width, "OUTPUTS": outputs, **tile.constants()})
    return out
