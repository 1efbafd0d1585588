"""Q4_K. Oracle: the ``gguf`` package's decoding, and the best that rounding to nearest within the range could do."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from jaxllm.quantization.q4_k import quantize_q4_k

Q4_K = gguf.GGMLQuantizationType.Q4_K


def decoded(values):
    return gguf.dequantize(quantize_q4_k(values), Q4_K)


@pytest.mark.parametrize("make", [
    lambda random: random.normal(0, 0.02, (16, 512)), lambda random: random.uniform(0, 1, (3, 256)),
    lambda random: random.uniform(-3, -1, (3, 256)), lambda random: random.standard_t(3, (16, 256))])
def test_errors_are_those_of_sixteen_steps(make):
    values = make(np.random.default_rng(0)).astype(np.float32)
    groups = values.reshape(-1, 32)
    step = (groups.max(1) - np.minimum(groups.min(1), 0)) / 15
    error = np.square(decoded(values).reshape(-1, 32) - groups).mean(1)
    # Rounding to nearest has a mean square of step**2 / 12. The search for ranges gains some of it; scales of 6 bits,
    # whose unit is the block's largest, lose more in groups of small numbers: hence a mean over all.
    assert error.mean() < np.square(step).mean() / 12 * 1.1


def test_what_can_be_said_exactly_is():
    codes = np.random.default_rng(1).integers(0, 16, (4, 8, 32))
    codes[:, :, :2] = 0, 15
    scales, minima = np.array([63, 1, 5, 16, 17, 32, 48, 62]), np.array([0, 63, 1, 2, 15, 16, 33, 60])
    values = (codes * scales[:, None] * 0.125 - minima[:, None] * 0.25).reshape(4, 256).astype(np.float32)
    np.testing.assert_array_equal(decoded(values), values)


@pytest.mark.parametrize("values", [np.zeros((2, 256)), np.full((2, 256), -1.5), np.full((1, 256), 7.0)])
def test_blocks_without_a_range_stand(values):
    np.testing.assert_allclose(decoded(values.astype(np.float32)), values, rtol=2e-3)


def test_rows_keep_their_shape():
    values = np.random.default_rng(2).normal(size=(2, 3, 512)).astype(np.float32)
    assert quantize_q4_k(values).shape == (2, 3, 288)
    np.testing.assert_array_equal(quantize_q4_k(values[1, 2]), quantize_q4_k(values)[1, 2])
