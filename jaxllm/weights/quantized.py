"""GGUF tensor types: their block sizes, and dequantization to float32."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np

from jaxllm.weights.convert import CHUNK, cast


@dataclasses.dataclass(frozen=True, slots=True)
class GGUFType:
    """One GGUF tensor type: ``block`` elements are stored in ``nbytes`` bytes."""

    name: str
    block: int
    nbytes: int

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of ``columns`` elements, which is a multiple of ``block``."""
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

    Quantized values become float32 first: those of ``gguf.quants.dequantize``, bit for bit.
    """
    plain = plain_dtype(kind)
    if plain is not None:
        cast(raw.view(plain), out)
        return
    blocks = max(1, CHUNK // kind.block)
    scratch = np.empty(min(CHUNK, out.size), np.float32)
    for start in range(0, out.size, blocks * kind.block):
        part = out[start : start + blocks * kind.block]
        stored = raw[start // kind.block * kind.nbytes :][: part.size // kind.block * kind.nbytes]
        if part.dtype == np.float32:
            _dequantize(stored, kind, part)
        else:
            _dequantize(stored, kind, scratch[: part.size])
            cast(scratch[: part.size], part)


def _dequantize(raw: np.ndarray, kind: GGUFType, out: np.ndarray) -> None:
    import gguf

    out[:] = gguf.quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType[kind.name]).reshape(-1)
