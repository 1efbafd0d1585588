"""GGUF tensor types: their block sizes, and decoding them.

Source: the structures ``block_q4_0`` and so on of ggml's ``ggml-common.h``. The commonest types are decoded by the
native library where it is there; elsewhere here, two to three times as fast as by the ``gguf`` package's numpy code,
which decodes the others and is the oracle for all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import ml_dtypes
import numpy as np

from jaxllm.weights.convert import CHUNK, cast

NATIVE_CHUNK = 1 << 18
"""Elements given to native code at a time."""


@dataclasses.dataclass(frozen=True, slots=True)
class GGUFType:
    """One GGUF tensor type: ``block`` elements are stored in ``nbytes`` bytes."""

    name: str
    block: int
    nbytes: int

    def row_bytes(self, columns: int) -> int:
        """Bytes of ``columns`` elements, which are a multiple of ``block``."""
        return columns // self.block * self.nbytes


SUPPORTED_TYPES: dict[int, GGUFType] = {
    0: GGUFType("F32", 1, 4),
    1: GGUFType("F16", 1, 2),
    2: GGUFType("Q4_0", 32, 18),
    3: GGUFType("Q4_1", 32, 20),
    6: GGUFType("Q5_0", 32, 22),
    7: GGUFType("Q5_1", 32, 24),
    8: GGUFType("Q8_0", 32, 34),
    10: GGUFType("Q2_K", 256, 84),
    11: GGUFType("Q3_K", 256, 110),
    12: GGUFType("Q4_K", 256, 144),
    13: GGUFType("Q5_K", 256, 176),
    14: GGUFType("Q6_K", 256, 210),
    20: GGUFType("IQ4_NL", 32, 18),
    30: GGUFType("BF16", 1, 2),
}
"""The tensor types read here, by their number in the file."""

UNSUPPORTED_TYPES: dict[int, str] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4", 40: "NVFP4",
}
"""Names of the types that exist and are not read, for messages."""

_PLAIN = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}


def plain_dtype(kind: GGUFType) -> np.dtype | None:
    """The dtype of a type that stores plain numbers, ``None`` for a quantized one."""
    return _PLAIN.get(kind.name)


def decode(raw: np.ndarray, kind: GGUFType, out: np.ndarray) -> None:
    """Decode whole blocks, ``raw`` uint8 [blocks * kind.nbytes], into ``out`` [blocks * kind.block] of any float dtype.

    Both are C-contiguous. Quantized values become float32 first: those of ``gguf.quants.dequantize``, bit for bit.
    """
    plain = plain_dtype(kind)
    if plain is not None:
        cast(raw.view(plain), out)
        return
    if (native := _native(kind, out.dtype)) is not None:
        native(raw, kind.name, out)
        return
    dequantize = _DEQUANTIZE.get(kind.name) or _by_gguf_package(kind)
    scratch = np.empty(min(CHUNK, out.size), np.float32)
    for start in range(0, out.size, CHUNK):
        part = out[start : start + CHUNK]
        stored = raw[kind.row_bytes(start) : kind.row_bytes(start + part.size)].reshape(-1, kind.nbytes)
        values = part if part.dtype == np.float32 else scratch[: part.size]
        dequantize(stored, values.reshape(-1, kind.block))
        if values is not part:
            cast(values, part)


def elements_at_once(kind: GGUFType, dtype: np.dtype) -> int:
    """How many elements ``decode`` is best given: few enough for the processor's cache where numpy decodes, which
    passes over them several times; many where native code does, which passes once."""
    return NATIVE_CHUNK if _native(kind, dtype) is not None else CHUNK


def _native(kind: GGUFType, dtype: np.dtype) -> Callable[[np.ndarray, str, np.ndarray], None] | None:
    # Here, as it brings JAX, which reading a header can do without.
    from pallas_kernels.cpu.gguf import decode_gguf, decodes

    return decode_gguf if decodes(kind.name, dtype) else None


def _by_gguf_package(kind: GGUFType) -> Callable[[np.ndarray, np.ndarray], None]:
    import gguf

    number = gguf.GGMLQuantizationType[kind.name]

    def dequantize(blocks: np.ndarray, out: np.ndarray) -> None:
        out[:] = gguf.quants.dequantize(blocks.reshape(1, -1), number).reshape(out.shape)

    return dequantize


def _q4_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """16 bits of scale, then 32 nibbles around 8."""
    values = _nibbles(blocks[:, 2:], 16).view(np.int8)
    values -= 8
    np.multiply(values.reshape(out.shape), _halves(blocks, 0), out=out)


def _q4_1(blocks: np.ndarray, out: np.ndarray) -> None:
    """16 bits of scale, 16 bits of minimum, then 32 nibbles."""
    np.multiply(_nibbles(blocks[:, 4:], 16).reshape(out.shape), _halves(blocks, 0), out=out)
    out += _halves(blocks, 2)


def _q8_0(blocks: np.ndarray, out: np.ndarray) -> None:
    """16 bits of scale, then 32 signed bytes."""
    np.multiply(blocks[:, 2:].view(np.int8), _halves(blocks, 0), out=out)


def _q4_k(blocks: np.ndarray, out: np.ndarray) -> None:
    """16 bits of scale and of minimum for 8 groups of 32, their 6-bit factors in 12 bytes, then 256 nibbles.

    The first four factors of scale and of minimum are the low bits of bytes 0 to 3 and 4 to 7; of the last four, the
    low nibbles are in bytes 8 to 11 and the high bits above the first four.
    """
    packed = blocks[:, 4:16]
    first, second, last = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (last & 15) | ((first >> 2) & 48)], axis=1) * _halves(blocks, 0)
    minima = np.concatenate([second & 63, (last >> 4) | ((second >> 2) & 48)], axis=1) * _halves(blocks, 2)
    groups = out.reshape(-1, 8, 32)
    np.multiply(_nibbles(blocks[:, 16:], 32).reshape(groups.shape), scales[:, :, None], out=groups)
    groups -= minima[:, :, None]


_DEQUANTIZE: dict[str, Callable[[np.ndarray, np.ndarray], None]] = {
    "Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0, "Q4_K": _q4_k,
}
"""uint8 [blocks, bytes] into float32 [blocks, elements]."""


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte ``at`` of each block, as float32 [blocks, 1]."""
    return blocks[:, at : at + 2].view(np.float16).astype(np.float32)


def _nibbles(packed: np.ndarray, group: int) -> np.ndarray:
    """uint8 [blocks, bytes] to [blocks * bytes * 2]: of each ``group`` bytes first all low nibbles, then all high."""
    words = np.ascontiguousarray(packed).view(np.uint64).reshape(-1, group // 8)
    values = np.empty((words.shape[0], 2, group // 8), np.uint64)
    np.bitwise_and(words, 0x0F0F0F0F0F0F0F0F, out=values[:, 0])
    np.right_shift(words, 4, out=words)
    np.bitwise_and(words, 0x0F0F0F0F0F0F0F0F, out=values[:, 1])
    return values.view(np.uint8).reshape(-1)
