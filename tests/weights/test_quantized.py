"""Decoding GGUF tensor types. Oracle: ``gguf.quants.dequantize``; equality is to the bit, as the module promises."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import pytest

from jaxllm.weights import quantized
from jaxllm.weights.convert import CHUNK
from jaxllm.weights.quantized import SUPPORTED_TYPES, UNSUPPORTED_TYPES, GGUFType, decode, plain_dtype

QUANTIZED = [kind for kind in SUPPORTED_TYPES.values() if plain_dtype(kind) is None]


@pytest.fixture(params=["native", "numpy"], autouse=True)
def _decoder(request, monkeypatch):
    """Native code where it is built and knows the type; and what stands in for it elsewhere."""
    if request.param == "numpy":
        monkeypatch.setattr(quantized, "_native", lambda kind, dtype: None)


def random_blocks(kind: GGUFType, blocks: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, blocks * kind.nbytes, np.uint8)


def oracle(raw: np.ndarray, kind: GGUFType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType[kind.name]).reshape(-1)


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal to the bit, but for which NaN: random scales are sometimes NaN, and its payload means nothing."""
    nan = np.isnan(expected)
    assert nan.mean() < 0.1
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(actual.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])


def test_the_table_has_the_sizes_and_numbers_of_the_gguf_package():
    for number, kind in SUPPORTED_TYPES.items():
        theirs = gguf.GGMLQuantizationType(number)
        assert (theirs.name, *gguf.GGML_QUANT_SIZES[theirs]) == (kind.name, kind.block, kind.nbytes)
    for number, name in UNSUPPORTED_TYPES.items():
        assert gguf.GGMLQuantizationType(number).name == name


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_random_blocks_dequantize_as_the_gguf_package_does(kind: GGUFType):
    # More than one chunk, and a last chunk that is not full.
    raw = random_blocks(kind, CHUNK // kind.block + 3)
    out = np.empty(raw.size // kind.nbytes * kind.block, np.float32)
    decode(raw, kind, out)
    assert_same_bits(out, oracle(raw, kind))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_bfloat16_is_the_dequantized_float32_rounded_once(kind: GGUFType):
    raw = random_blocks(kind, CHUNK // kind.block + 3, seed=1)
    expected = oracle(raw, kind)
    out = np.empty(expected.size, ml_dtypes.bfloat16)
    decode(raw, kind, out)
    keep = ~np.isnan(expected)
    np.testing.assert_array_equal(out[keep].view(np.uint16), expected[keep].astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"])
def test_quantized_values_come_back_near_what_was_quantized(name: str):
    # Tolerance: half a step of the coarsest type, 4 bits over the range of a block of normal values (about -4 to 4).
    kind = next(kind for kind in SUPPORTED_TYPES.values() if kind.name == name)
    values = np.random.default_rng(2).standard_normal((8, 64), np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    out = np.empty(values.size, np.float32)
    decode(raw.reshape(-1), kind, out)
    np.testing.assert_allclose(out.reshape(values.shape), values, atol=0.35)


def test_float16_overflow_is_reported():
    kind = SUPPORTED_TYPES[0]
    with pytest.raises(OverflowError, match="bfloat16 or float32"):
        decode(np.array([1.0, 1e6], np.float32).view(np.uint8), kind, np.empty(2, np.float16))
    out = np.empty(2, np.float16)
    decode(np.array([1.0, np.inf], np.float32).view(np.uint8), kind, out)
    assert out[1] == np.inf
