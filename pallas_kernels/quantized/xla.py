"""Decoding in plain XLA, and the products as a decoding and a product: one decoded weight lives at a time."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, UInt8

from pallas_kernels.gated_matmul import Activation, gate
from pallas_kernels.grouped_matmul.tiles import multiply_tiles
from pallas_kernels.matmul import matmul
from pallas_kernels.quantized.formats import FORMATS, ROUNDING, Format

LARGEST = 127 * 256
_EXACT_INPUTS = 2**24 // 128**2


def quantized_matmul_xla(x: Float[Array, "T I"], weight: UInt8[Array, "O bytes"], kind: str,
                         scale: Float[Array, " O"] | None, out_dtype: np.dtype) -> Float[Array, "T O"]:
    """Whichever implementation `matmul` has for the decoded weight; of I8, sums of integers."""
    rows = decode(weight, FORMATS[kind], kind)
    if FORMATS[kind].rounds_x:
        return matmul(rounded(x), rows, out_dtype)
    if scale is None:
        return matmul(x, rows.astype(x.dtype), out_dtype)
    high, low, x_scale = quantize_rows(x)
    sums = _integer_sums(high, rows) * 256 + _integer_sums(low, rows)
    return (sums * scale * x_scale[:, None]).astype(out_dtype)


def quantized_grouped_matmul_xla(x: Float[Array, "T I"], weight: UInt8[Array, "E*O bytes"], kind: str,
                                 group_sizes: Int32[Array, " E"], scale: Float[Array, " E*O"] | None,
                                 out_dtype: np.dtype) -> Float[Array, "T O"]:
    """A loop over tiles of a group's rows, each as ``quantized_matmul_xla`` computes it."""
    outputs = weight.shape[0] // group_sizes.shape[0]

    def product(rows: Float[Array, "R I"], group: Int32[Array, ""]) -> Float[Array, "R O"]:
        blocks = jax.lax.dynamic_slice_in_dim(weight, group * outputs, outputs)
        scales = None if scale is None else jax.lax.dynamic_slice_in_dim(scale, group * outputs, outputs)
        return quantized_matmul_xla(rows, blocks, kind, scales, out_dtype)

    return multiply_tiles(x, group_sizes, outputs, out_dtype, product)


def quantize_rows(x: Float[Array, "T I"]) -> tuple[Float[Array, "T I"], Float[Array, "T I"], Float[Array, " T"]]:
    """The high and low bytes, signed, of whole numbers from -32512 to 32512, and each row's factor; all in float32.

    A row below 2**-100 counts as zeros. The factor of one with values that are infinite or no numbers is no number, or
    infinite over zeros; either way all its products are no numbers.
    """
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), -1, initial=0)
    factor = jnp.where(largest >= 2.0**-100, LARGEST / largest, 0)
    codes = jnp.rint(wide * factor[:, None])
    codes = jnp.where(jnp.isnan(codes), 0, codes)
    high = jnp.floor((codes + 128) / 256)
    return high, codes - 256 * high, largest * np.float32(1 / LARGEST)


def rounded(x: Float[Array, "T I"]) -> Float[Array, "T I"]:
    """Each 32 inputs as whole numbers from -127 to 127 times a factor, their largest magnitude over 127; in float32.

    Below 2**-100 they count as zeros; if one is infinite or no number, all of the 32 are no numbers.
    """
    groups = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, 32)
    largest = jnp.max(jnp.abs(groups), -1, keepdims=True)
    codes = jnp.rint(groups * jnp.where(largest >= 2.0**-100, 127 / largest, 0))
    factor = jnp.where(jnp.isfinite(largest), largest * np.float32(1 / 127), jnp.nan)
    return (codes * factor).reshape(x.shape)


def _integer_sums(codes: Float[Array, "T I"], rows: Float[Array, "O I"]) -> Float[Array, "T O"]:
    """Exact sums, rounded to float32: products of float32 numbers add up to less than 2**24 over so many inputs."""
    total: Array | int = 0
    for start in range(0, codes.shape[1], _EXACT_INPUTS):
        part = slice(start, start + _EXACT_INPUTS)
        sums = jnp.matmul(codes[:, part], rows[:, part].T, precision=jax.lax.Precision.HIGHEST)
        total = total + sums.astype(jnp.int32)
    return jnp.asarray(total).astype(jnp.float32)


def quantized_gated_matmul_xla(x: Float[Array, "T I"], weight: UInt8[Array, "2F bytes"], kind: str,
                               scale: Float[Array, " 2F"] | None, activation: Activation) -> Float[Array, "T F"]:
    """The product with both halves, then the gate."""
    return gate(quantized_matmul_xla(x, weight, kind, scale, x.dtype), activation)


def decode(weight: UInt8[Array, "O bytes"], layout: Format, kind: str) -> Float[Array, "O I"]:
    """The numbers in float32, of I8 the codes.

    Products are exact in float32 whatever the format (a code of at most 8 bits, a factor of at most 8 and a scale of
    11), so that it makes no difference if a compiler fuses them with the sum that follows.
    """
    rows, nbytes = weight.shape
    blocks = weight.reshape(rows, nbytes // layout.nbytes, layout.nbytes)
    return _DECODE[kind.removesuffix(ROUNDING)](blocks).reshape(rows, layout.inputs(nbytes))


def _q4_0(blocks: Array) -> Array:
    return (_nibbles(blocks[..., 2:]) - 8.0) * _half(blocks, 0)


def _q4_1(blocks: Array) -> Array:
    return _nibbles(blocks[..., 4:]) * _half(blocks, 0) + _half(blocks, 2)


def _q5_0(blocks: Array) -> Array:
    return (_five_bits(blocks[..., 2:]) - 16.0) * _half(blocks, 0)


def _q5_1(blocks: Array) -> Array:
    return _five_bits(blocks[..., 4:]) * _half(blocks, 0) + _half(blocks, 2)


def _q8_0(blocks: Array) -> Array:
    return _signed(blocks[..., 2:]) * _half(blocks, 0)


def _q4_k(blocks: Array) -> Array:
    first, second, last = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = jnp.concatenate([first & 63, (last & 15) | ((first >> 2) & 48)], -1).astype(jnp.float32)
    minima = jnp.concatenate([second & 63, (last >> 4) | ((second >> 2) & 48)], -1).astype(jnp.float32)
    codes = _nibbles(blocks[..., 16:].reshape(*blocks.shape[:-1], 4, 32)).reshape(*blocks.shape[:-1], 8, 32)
    return codes * (scales * _half(blocks, 0))[..., None] - (minima * _half(blocks, 2))[..., None]


def _q6_k(blocks: Array) -> Array:
    low = blocks[..., :128].reshape(*blocks.shape[:-1], 2, 1, 64)
    high = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 1, 32)
    low = (low >> np.array([0, 4], np.uint8)[:, None]) & 15
    high = (high >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    codes = low.reshape(*blocks.shape[:-1], 16, 16) | (high.reshape(*blocks.shape[:-1], 16, 16) << 4)
    scales = _signed(blocks[..., 192:208]) * _half(blocks, 208)
    return (codes.astype(jnp.float32) - 32.0) * scales[..., None]


_DECODE: dict[str, Callable[[Array], Array]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q6_K": _q6_k,
    "I8": lambda blocks: _signed(blocks),
}
"""uint8 [O, blocks, bytes] to float32 with the same first two dimensions."""


def _half(blocks: Array, at: int) -> Array:
    """The float16 at a byte of each block, with one more dimension."""
    return jax.lax.bitcast_convert_type(blocks[..., at : at + 2], jnp.float16).astype(jnp.float32)[..., None]


def _nibbles(packed: Array) -> Array:
    """First all low halves, then all high ones, in float32."""
    return jnp.concatenate([packed & 15, packed >> 4], -1).astype(jnp.float32)


def _five_bits(packed: Array) -> Array:
    """4 bytes of fifth bits, then 16 of nibbles, in float32."""
    fifth = (packed[..., :4, None] >> np.arange(8, dtype=np.uint8)) & 1
    return _nibbles(packed[..., 4:]) + fifth.reshape(*packed.shape[:-1], 32).astype(jnp.float32) * 16.0


def _signed(packed: Array) -> Array:
    return jax.lax.bitcast_convert_type(packed, jnp.int8).astype(jnp.float32)
