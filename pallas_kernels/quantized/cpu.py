"""Products with quantized weights by the native library: rows are decoded in the cache while they are needed there."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, UInt8

from pallas_kernels.cpu.library import require
from pallas_kernels.gated_matmul.activations import ACTIVATIONS, Activation
from pallas_kernels.matmul.cpu import workspace
from pallas_kernels.quantized.formats import FORMATS

_STEP = 32
_ROUNDS_X = 256
"""What the library's numbers of kinds are higher by where x is rounded."""


def unsupported(x: Array, weight: Array, kind: str, scale: Array | None, out_dtype: np.dtype | None = None,
                activation: Activation | None = None, group_sizes: Array | None = None) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if x.dtype != jnp.bfloat16:
        return f"x is bfloat16, not {x.dtype}"
    if out_dtype not in (None, jnp.bfloat16, jnp.float32):
        return f"results are bfloat16 or float32, not {out_dtype}"
    return f"inputs are a multiple of {_STEP}, not {x.shape[1]}" if x.shape[1] % _STEP else None


def quantized_matmul_cpu(x: Float[Array, "T I"], weight: UInt8[Array, "O bytes"], kind: str,
                         scale: Float[Array, " O"] | None, out_dtype: np.dtype) -> Float[Array, "T O"]:
    """One call for the whole product, on XLA's threads."""
    return _call("pallas_kernels_quantized_matmul_v1", x, weight, kind, scale, weight.shape[0], out_dtype)


def quantized_gated_matmul_cpu(x: Float[Array, "T I"], weight: UInt8[Array, "2F bytes"], kind: str,
                               scale: Float[Array, " 2F"] | None, activation: Activation) -> Float[Array, "T F"]:
    """One call, on XLA's threads; the gate is applied to sums while they are in registers."""
    return _call("pallas_kernels_quantized_gated_matmul_v1", x, weight, kind, scale, weight.shape[0] // 2, x.dtype,
                 activation=ACTIVATIONS[activation])


def quantized_grouped_matmul_cpu(x: Float[Array, "T I"], weight: UInt8[Array, "E*O bytes"], kind: str,
                                 group_sizes: Int32[Array, " E"], scale: Float[Array, " E*O"] | None,
                                 out_dtype: np.dtype) -> Float[Array, "T O"]:
    """One call, on XLA's threads: a product for each group that has rows. Weights of the others are not read."""
    return _call("pallas_kernels_quantized_grouped_matmul_v1", x, weight, kind, scale,
                 weight.shape[0] // group_sizes.shape[0], out_dtype, group_sizes)


def _call(target: str, x: Array, weight: Array, kind: str, scale: Array | None, outputs: int, dtype: np.dtype,
          *operands: Array, **attributes: int) -> Array:
    room = _int8_workspace(*x.shape) if FORMATS[kind].scaled else workspace(x)
    product = jax.ffi.ffi_call(
        require(target), (jax.ShapeDtypeStruct((x.shape[0], outputs), dtype), room), vmap_method="sequential")
    result, _ = product(x, weight, jnp.zeros(0, jnp.float32) if scale is None else scale, *operands,
                        kind=FORMATS[kind].number + _ROUNDS_X * FORMATS[kind].rounds_x, **attributes)
    return result


def _int8_workspace(tokens: int, inputs: int) -> jax.ShapeDtypeStruct:
    """Room for the bytes of x, its rows' factors, and the bytes once more in the order that tiles read them in."""
    blocks = -(-tokens // 8)
    sizes = (-(-16 * blocks * inputs // 64) * 64, -(-4 * 8 * blocks // 64) * 64, blocks * -(-inputs // 64) * 1024)
    return jax.ShapeDtypeStruct((sum(sizes),), jnp.uint8)
