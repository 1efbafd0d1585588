"""Products with quantized weights in float64, on the host, block by block as the formats' reference reads them. For
tests only."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import Array, Float, Int32, UInt8

from pallas_kernels.gated_matmul.activations import Activation
from pallas_kernels.gated_matmul.oracle import gate_oracle
from pallas_kernels.quantized.formats import FORMATS, ROUNDING


def quantized_matmul_oracle(x: Float[Array, "T I"], weight: UInt8[Array, "O bytes"], kind: str,
                            scale: Float[Array, " O"] | None, out_dtype: np.dtype) -> Float[Array, "T O"]:
    """Exact but for the contract's roundings and, not of I8, one to float64 per addition; in ``jit`` by a callback."""
    like = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), out_dtype)
    scales = () if scale is None else (scale,)
    return jax.pure_callback(
        lambda *operands: _product(kind, *operands).astype(out_dtype), like, x, weight, *scales)


def quantized_gated_matmul_oracle(x: Float[Array, "T I"], weight: UInt8[Array, "2F bytes"], kind: str,
                                  scale: Float[Array, " 2F"] | None, activation: Activation) -> Float[Array, "T F"]:
    """The same for the gated product."""
    like = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0] // 2), x.dtype)
    scales = () if scale is None else (scale,)
    return jax.pure_callback(functools.partial(_gated, kind, activation), like, x, weight, *scales)


def quantized_grouped_matmul_oracle(x: Float[Array, "T I"], weight: UInt8[Array, "E*O bytes"], kind: str,
                                    group_sizes: Int32[Array, " E"], scale: Float[Array, " E*O"] | None,
                                    out_dtype: np.dtype) -> Float[Array, "T O"]:
    """The same, group by group."""
    groups = group_sizes.shape[0]
    like = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0] // groups), out_dtype)
    scales = () if scale is None else (scale.reshape(groups, -1),)
    return jax.pure_callback(lambda *operands: _grouped(kind, *operands).astype(out_dtype), like, x, group_sizes,
                             weight.reshape(groups, -1, weight.shape[1]), *scales)


def _grouped(kind: str, x: np.ndarray, sizes: np.ndarray, weights: np.ndarray, scales: np.ndarray | None = None
             ) -> np.ndarray:
    parts = np.split(np.asarray(x), np.cumsum(sizes))
    each = [(part, np.asarray(weights[group]), *(() if scales is None else (scales[group],)))
            for group, part in enumerate(parts[:-1])]
    rest = np.zeros((len(parts[-1]), weights.shape[1]))
    return np.concatenate([*(_product(kind, *operands) for operands in each), rest])


def rows_of(weight: np.ndarray, kind: str) -> np.ndarray:
    """The numbers of uint8 [O, bytes], of I8 the codes, in float32."""
    layout = FORMATS[kind]
    blocks = np.asarray(weight).reshape(-1, layout.nbytes)
    decode = _DECODE[kind.removesuffix(ROUNDING)]
    return np.stack([decode(block) for block in blocks]).reshape(weight.shape[0], -1)


def _product(kind: str, x: np.ndarray, weight: np.ndarray, scale: np.ndarray | None = None) -> np.ndarray:
    x, rows = np.asarray(x), rows_of(weight, kind)
    if FORMATS[kind].rounds_x:
        return _rounded(x.astype(np.float32)) @ rows.astype(np.float64).T
    if scale is None:
        return x.astype(np.float64) @ rows.astype(x.dtype).astype(np.float64).T
    largest = np.abs(x.astype(np.float32)).max(-1, initial=0)
    factor = np.divide(np.float32(32512), largest, out=np.zeros_like(largest), where=largest >= 2.0**-100)
    codes = np.rint(x.astype(np.float32) * factor[:, None]).astype(np.int64)
    low = (codes + 128) % 256 - 128
    high_sums, low_sums = (part @ rows.astype(np.int64).T for part in ((codes - low) // 256, low))
    sums = high_sums.astype(np.float32) * 256 + low_sums.astype(np.float32)
    return sums * np.asarray(scale) * (largest * np.float32(1 / 32512))[:, None]


def _rounded(x: np.ndarray) -> np.ndarray:
    groups = x.reshape(len(x), -1, 32)
    largest = np.abs(groups).max(-1, keepdims=True)
    factor = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest >= 2.0**-100)
    return (np.rint(groups * factor).astype(np.float64) * (largest * np.float32(1 / 127))).reshape(x.shape)


def _gated(kind: str, activation: Activation, x: np.ndarray, weight: np.ndarray, scale: np.ndarray | None = None
           ) -> np.ndarray:
    x = np.asarray(x)
    return gate_oracle(_product(kind, x, weight, scale).astype(x.dtype), activation)


def _half(block: np.ndarray, at: int) -> np.float32:
    return np.float32(block[at : at + 2].copy().view(np.float16)[0])


def _nibbles(packed: np.ndarray) -> np.ndarray:
    return np.concatenate([packed % 16, packed // 16]).astype(np.float32)


def _q4_0(block: np.ndarray) -> np.ndarray:
    return (_nibbles(block[2:]) - np.float32(8)) * _half(block, 0)


def _q4_1(block: np.ndarray) -> np.ndarray:
    return _nibbles(block[4:]) * _half(block, 0) + _half(block, 2)


def _five_bits(packed: np.ndarray) -> np.ndarray:
    fifth = np.unpackbits(packed[:4], bitorder="little")
    return _nibbles(packed[4:]) + fifth.astype(np.float32) * 16


def _q5_0(block: np.ndarray) -> np.ndarray:
    return (_five_bits(block[2:]) - np.float32(16)) * _half(block, 0)


def _q5_1(block: np.ndarray) -> np.ndarray:
    return _five_bits(block[4:]) * _half(block, 0) + _half(block, 2)


def _q8_0(block: np.ndarray) -> np.ndarray:
    return block[2:].view(np.int8).astype(np.float32) * _half(block, 0)


def _q4_k(block: np.ndarray) -> np.ndarray:
    packed, parts = block[4:16].astype(int), []
    for group in range(8):
        if group < 4:
            scale, minimum = packed[group] % 64, packed[group + 4] % 64
        else:
            scale = packed[group + 4] % 16 + packed[group - 4] // 64 * 16
            minimum = packed[group + 4] // 16 + packed[group] // 64 * 16
        values = block[16 + group // 2 * 32 :][:32]
        codes = (values // 16 if group % 2 else values % 16).astype(np.float32)
        parts.append(codes * (np.float32(scale) * _half(block, 0)) - np.float32(minimum) * _half(block, 2))
    return np.concatenate(parts)


def _q6_k(block: np.ndarray) -> np.ndarray:
    low, high, factors = block[:128], block[128:192], block[192:208].view(np.int8)
    parts = []
    for step in range(8):
        half, part = divmod(step, 4)
        values = low[64 * half + 32 * (part % 2) :][:32]
        codes = (values // 16 if part >= 2 else values % 16).astype(int)
        codes += high[32 * half :][:32] // 4**part % 4 * 16
        scales = np.repeat(factors[2 * step : 2 * step + 2].astype(np.float32) * _half(block, 208), 16)
        parts.append((codes - 32).astype(np.float32) * scales)
    return np.concatenate(parts)


_DECODE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8_0, "Q4_K": _q4_k, "Q6_K": _q6_k,
    "I8": lambda block: block.view(np.int8).astype(np.float32),
}
"""One block, uint8, to its numbers in float32."""
