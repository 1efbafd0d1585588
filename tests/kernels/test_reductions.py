"""Exponentials with fixed arithmetic."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from pallas_kernels.reductions import exp_of_multiple


@pytest.mark.parametrize("factor", [1.0, 0.125, 80**-0.5])
def test_exp_of_multiple_is_accurate(factor):
    """Against float64 of the float32 numbers and the factor as it is; the bound is the one that is documented."""
    x = np.linspace(-20 / factor, 0, 200_000).astype(np.float32)
    got = np.asarray(jax.jit(lambda x: exp_of_multiple(x, factor))(x), np.float64)
    np.testing.assert_allclose(got, np.exp(x.astype(np.float64) * factor), rtol=16 * 2**-24)


def test_exp_of_multiple_is_1_at_0_and_0_where_floats_end():
    x = np.array([0.0, -0.0, -88.0, -1e4, -1e30], np.float32)
    assert np.asarray(jax.jit(lambda x: exp_of_multiple(x, 1.0))(x)).tolist() == [1, 1, 0, 0, 0]
