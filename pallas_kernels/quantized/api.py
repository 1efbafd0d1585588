"""The contract of products with quantized weights: those of the decoded weights, to the bit."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, UInt8

from pallas_kernels import registry
from pallas_kernels.gated_matmul.activations import Activation, check_activation
from pallas_kernels.quantized.formats import FORMATS, Format
from pallas_kernels.quantized.xla import decode

_MOST_INTEGERS = 2**31 // 128**2 - 1  # whose products of bytes add up to less than 2**31
_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def quantized_matmul(
    x: Float[Array, "T I"],
    weight: UInt8[Array, "O bytes"],
    kind: str,
    scale: Float[Array, " O"] | None = None,
    out_dtype: DTypeLike | None = None,
    implementation: str | None = None,
) -> Float[Array, "T O"]:
    """``matmul(x, w)`` with the rows ``w`` that are stored in ``weight``, without a decoded copy of them.

    kind: of ``FORMATS``. scale: of I8, one float32 factor per row; else ``None``.

    Rows are decoded to float32, every operation rounded, then rounded to x's dtype; the rest is the arithmetic of
    `matmul`, so that an implementation's result has the bits of its own `matmul` with decoded weights.

    Of I8, rows of x are quantized as well: to whole numbers from -32512 to 32512 (16 bits, more than bfloat16's 8) and
    a factor, the largest magnitude over 32512. Sums of products with their high and with their low bytes are exact
    integers; rounded to float32, they make one sum, which is multiplied by the weight's factor, then x's, then rounded
    to ``out_dtype``. So every implementation gives the same bits. There are at most 131,071 inputs, so that sums fit.

    Kinds that end with ``_A8`` round x to 8 bits, as llama.cpp's products on CPUs do: each 32 inputs of a row to whole
    numbers from -127 to 127 and a factor, their largest magnitude over 127 (zeros below 2**-100; where one is infinite
    or no number, the row's products are no numbers). Rows of ``weight`` are not rounded to x's dtype then: sums are of
    their exact numbers, in float32. Where a processor multiplies bytes, that is faster than decoding them.
    """
    check_product(x, weight, kind, scale)
    out = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    operands = {"x": x, "weight": weight, "kind": kind, "scale": scale, "out_dtype": out}
    return registry.choose("quantized_matmul", implementation, operands=operands).run(**operands)


def quantized_gated_matmul(
    x: Float[Array, "T I"],
    weight: UInt8[Array, "2F bytes"],
    kind: str,
    scale: Float[Array, " 2F"] | None = None,
    activation: Activation = "silu",
    implementation: str | None = None,
) -> Float[Array, "T F"]:
    """``gated_matmul(x, w, activation)`` with the rows ``w`` that are stored in ``weight``.

    The other arguments are `quantized_matmul`'s.
    """
    check_activation(activation)
    check_product(x, weight, kind, scale)
    if weight.shape[0] % 2:
        raise ValueError(f"weight must be [2 * F, bytes], got shape {weight.shape}")
    operands = {"x": x, "weight": weight, "kind": kind, "scale": scale, "activation": activation}
    return registry.choose("quantized_gated_matmul", implementation, operands=operands).run(**operands)


def dequantize(
    weight: UInt8[Array, "O bytes"], kind: str, scale: Float[Array, " O"] | None = None,
    dtype: DTypeLike = jnp.float32,
) -> Float[Array, "O I"]:
    """The numbers of some rows: decoded in float32, of I8 times the rows' factors, rounded once to ``dtype``."""
    rows = decode(weight, _checked_format(weight, kind, scale), kind)
    return (rows if scale is None else rows * scale[:, None]).astype(dtype)


def check_product(x: Array, weight: Array, kind: str, scale: Array | None) -> None:
    """ValueError unless they go together."""
    found = _checked_format(weight, kind, scale)
    if x.ndim != 2:
        raise ValueError(f"x must be [T, I], got shape {x.shape}")
    if x.dtype not in _DTYPES:
        raise ValueError(f"x must be float32, bfloat16 or float16, got {x.dtype}")
    if found.scaled and x.shape[1] > _MOST_INTEGERS:
        raise ValueError(f"x must have at most {_MOST_INTEGERS:,} inputs for kind={kind!r}, got shape {x.shape}")
    if weight.shape[1] != found.row_bytes(x.shape[1]):
        raise ValueError(f"weight must be [O, {found.row_bytes(x.shape[1])}], as {kind} stores rows of {x.shape[1]} "
                         f"numbers, got shape {weight.shape}")


def _checked_format(weight: Array, kind: str, scale: Array | None) -> Format:
    if kind not in FORMATS:
        raise ValueError(f"kind={kind!r} is not known; there are {', '.join(FORMATS)}")
    found = FORMATS[kind]
    if weight.ndim != 2 or weight.dtype != jnp.uint8 or weight.shape[1] % found.nbytes:
        raise ValueError(f"weight must be uint8 [O, bytes], whole blocks of {found.nbytes} bytes, got {weight.dtype} "
                         f"of shape {weight.shape}")
    if found.scaled != (scale is not None):
        raise ValueError(f"scale must be {'float32 [O]' if found.scaled else 'None'} for kind={kind!r}")
    if scale is not None and (scale.shape != weight.shape[:1] or scale.dtype != jnp.float32):
        raise ValueError(f"scale must be float32 [{weight.shape[0]}], got {scale.dtype} of shape {scale.shape}")
    return found
