"""Row reductions: against numpy, with ties and extremes, and bit for bit the same in any batch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.reductions import isolated_exp, row_sum
from pallas_kernels.sampling.reductions import argmax, count, holds_nan_or_inf, top_k

WIDTHS = [1, 31, 6401, *(pytest.param(width, marks=pytest.mark.sweep) for width in (5, 16, 257, 1000, 2048))]


@pytest.mark.parametrize("width", WIDTHS)
def test_row_sum_is_accurate(width):
    """Against float64; every term goes through at most 3 additions for each factor of 8, each of half an ulp."""
    x = np.random.default_rng(width).exponential(size=(8, width)).astype(np.float32)
    np.testing.assert_allclose(jax.jit(row_sum)(x), x.sum(-1, dtype=np.float64), rtol=16 * 2**-24)


@pytest.mark.parametrize("width", [257, *(pytest.param(w, marks=pytest.mark.sweep) for w in (31, 1000, 2048, 6401))])
def test_row_sum_and_exp_of_a_row_are_the_same_bits_in_any_batch(width):
    rng = np.random.default_rng(width)
    x = rng.normal(0, 5, (128, width)).astype(np.float32)
    f = jax.jit(lambda x: row_sum(isolated_exp(x)))
    whole = np.asarray(f(x))
    for rows in (1, 2, 3, 4, 8, 16, 24, 64):
        start = int(rng.integers(0, 128 - rows))
        assert np.array_equal(f(x[start : start + rows]), whole[start : start + rows])


def test_row_sum_is_monotone_in_its_terms():
    """Hiding one more term never raises the sum: top-p's set is a prefix because of this."""
    x = np.sort(np.random.default_rng(0).exponential(size=300).astype(np.float32) ** 4)
    hidden = jnp.tril(jnp.ones((300, 300), jnp.float32)) * x
    assert (np.diff(np.asarray(jax.jit(row_sum)(hidden))) >= 0).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_argmax_is_numpys_with_ties_to_the_lowest_id(width):
    x = np.random.default_rng(width).integers(-3, 4, (32, width)).astype(np.float32)
    x[0] = -np.inf
    x[1] = 0.0
    x[1, width // 2] = -0.0
    index, best = jax.jit(argmax)(x)
    assert np.array_equal(index, x.argmax(-1))
    assert np.array_equal(best, x.max(-1))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("k", [1, 3, 20])
def test_top_k_is_a_stable_sort_with_ties_to_the_lowest_id(width, k):
    rng = np.random.default_rng(width + k)
    x = rng.integers(-30, 30, (16, width)).astype(np.float32)
    x[0] = np.where(np.arange(width) % 3 == 0, -0.0, 0.0)
    x[1] = -np.inf
    x[1, -1] = 5.0
    x[2] = rng.normal(size=width)
    k = min(k, width)
    values, ids = jax.jit(top_k, static_argnums=1)(x, k)
    order = np.argsort(-x, axis=-1, kind="stable")[:, :k]
    assert np.array_equal(ids, order)
    assert np.array_equal(values, np.take_along_axis(x, order, -1))


def test_top_k_of_more_than_there_is_is_an_error():
    with pytest.raises(ValueError, match="k=6 is not allowed"):
        top_k(jnp.zeros((8, 5)), 6)


def test_count_is_exact():
    x = np.random.default_rng(0).random((8, 6401)) < 0.3
    assert np.array_equal(jax.jit(count)(x), x.sum(-1))


@pytest.mark.parametrize("width", [5, 257, 2048])
def test_rows_with_nan_or_inf_are_found_and_no_others(width):
    rng = np.random.default_rng(width)
    x = rng.normal(size=(8, width)).astype(np.float32)
    where = rng.integers(0, width, 8)
    x[1, where[1]] = np.nan
    x[2, where[2]] = np.inf
    x[3, where[3]] = -np.inf
    x[4] = -np.inf
    x[5] = np.finfo(np.float32).max
    x[5, where[5]] = -np.inf
    x[6, where[6]], x[6, where[6] - 1] = np.inf, -np.inf
    assert np.asarray(jax.jit(holds_nan_or_inf)(x)).tolist() == [False, True, True, False, False, False, True, False]
