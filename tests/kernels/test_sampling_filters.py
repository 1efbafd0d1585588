"""Top-k, min-p and top-p: against a sort in float64, alone and combined, with ties and extremes.

With scores that grow from the most to the least likely token, the winner is the last token kept, which tells the whole
kept set, since filters keep a prefix of the tokens in order of preference.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling.oracle import build_rows, kept_range, preference

from jaxllm.sampling_params import SamplingParams
from pallas_kernels.sampling import DrawParameters
from pallas_kernels.sampling.filters import SHORT_LIST, draw_filtered, last_of_top_k, preceding

draw = jax.jit(draw_filtered)


@jax.jit
def up_to_last_of_top_k(logits: jax.Array, k: jax.Array) -> jax.Array:
    """Compared on the device, where the CPU takes a subnormal threshold for the zero that it stands for."""
    value, token = last_of_top_k(logits, k)
    return preceding(logits, value, token + 1)


def draws_of(params: list[SamplingParams]) -> DrawParameters:
    return jax.tree.map(np.asarray, jax.tree.map(jax.numpy.asarray, build_rows(params)).draws)


def kept_counts(logits: np.ndarray, params: list[SamplingParams]) -> np.ndarray:
    """How many tokens each row's filters keep."""
    orders = [preference(row) for row in logits]
    scores = np.empty(logits.shape, np.float32)
    for row, order in enumerate(orders):
        scores[row, order] = np.arange(len(order))
    scores[logits == -np.inf] = -np.inf  # as the sampler's are
    tokens, _ = draw(logits, scores, draws_of(params))
    return np.array([1 + int(np.flatnonzero(order == token)[0]) for order, token in zip(orders, tokens, strict=True)])


def log_of(*weights: float) -> np.ndarray:
    """8 equal rows of 97 logits: the logarithms of the weights, then -inf."""
    logits = np.full((8, 97), -np.inf, np.float32)
    logits[:, : len(weights)] = np.log(np.array(weights, np.float32))
    return logits


FILTERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.1, 0.7, 1.0, 3.0]),
    top_k=st.one_of(st.just(0), st.integers(2, 120)),
    top_p=st.one_of(st.just(1.0), st.floats(2.0**-20, 1.0, width=32)),
    min_p=st.one_of(st.just(0.0), st.floats(0.0, 1.0, width=32)),
)


def mixed_logits(rng: np.random.Generator) -> np.ndarray:
    """8 rows of 97 logits: of any size, tied, zeros of both signs and -inf, in random shares."""
    kinds = np.stack(
        [rng.normal(0, 4, (8, 97)), rng.integers(-3, 4, (8, 97)), np.full((8, 97), -0.0), np.full((8, 97), -np.inf)]
    )
    pick = rng.choice(4, size=(8, 97), p=rng.dirichlet([1, 1, 0.3, 0.3]))
    logits = np.take_along_axis(kinds, pick[None], 0)[0].astype(np.float32)
    logits[:, 41] = 1.0  # never a row of only -inf
    return logits


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), params=st.lists(FILTERS, min_size=8, max_size=8))
def test_kept_set_matches_a_sort_for_any_options_and_ties(seed, params):
    """Limits that float32 cannot tell apart allow either side."""
    logits = mixed_logits(np.random.default_rng(seed))
    kept = kept_counts(logits, params)
    for row in range(8):
        low, high = kept_range(logits[row], params[row])
        assert low <= kept[row] <= high


@pytest.mark.parametrize("size", [97, pytest.param(3000, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [2, SHORT_LIST, SHORT_LIST + 1, 96, 97, 98, 10**9])
def test_top_k_keeps_exactly_k_with_ties_to_the_lowest_ids(size, ties, k):
    """Both ways of finding the last token: the list up to SHORT_LIST, the bisection beyond; k = V and more keep all."""
    rng = np.random.default_rng(k)
    logits = rng.integers(-2, 3, (8, size)) if ties else rng.normal(0, 4, (8, size))
    logits = logits.astype(np.float32)
    logits[0] = np.where(np.arange(size) % 3 == 0, -0.0, 0.0)
    logits[1, ::2] = -np.inf
    logits[2] *= np.float32(1e30)
    kept = np.asarray(up_to_last_of_top_k(logits, np.full(8, k, np.int32)))
    for row in range(8):
        expected = np.zeros(size, bool)
        expected[preference(logits[row])[:k]] = True
        finite = np.isfinite(logits[row])
        assert np.array_equal(kept[row] & finite, expected & finite)


def test_top_k_of_a_single_possible_token():
    logits = np.full((8, 97), -np.inf, np.float32)
    logits[:, 33] = -5.0
    for params in (SamplingParams(top_k=5), SamplingParams(top_k=90), SamplingParams(top_p=0.5, min_p=0.5)):
        tokens, best = draw(logits, logits, draws_of([params] * 8))
        assert (np.asarray(tokens) == 33).all()
        assert np.isfinite(best).all()


@pytest.mark.parametrize(("top_p", "expected"), [(0.24, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4)])
def test_top_p_on_equal_probabilities_takes_the_lowest_ids_until_it_is_reached(top_p, expected):
    logits = np.full((8, 97), -np.inf, np.float32)
    logits[:, [3, 8, 20, 33]] = 2.0
    assert (kept_counts(logits, [SamplingParams(top_p=top_p)] * 8) == expected).all()


def test_top_p_works_on_what_top_k_left():
    """Of 0.4, 0.3, 0.2 and 0.1, top-k 2 leaves 4/7 and 3/7, so top-p 0.5 keeps one token; alone it keeps two."""
    logits = log_of(0.1, 0.4, 0.2, 0.3)
    together, alone = SamplingParams(top_k=2, top_p=0.5), SamplingParams(top_p=0.5)
    assert kept_counts(logits, [together, alone] * 4).tolist() == [1, 2] * 4


def test_min_p_is_relative_to_the_most_likely_token_at_the_temperature():
    """Ratios 1, 0.5, 0.25 become 1, 0.25, 0.0625 at temperature 1/2."""
    logits = log_of(0.25, 1.0, 0.5)
    cases = [(0.24, 1.0, 3), (0.26, 1.0, 2), (0.51, 1.0, 1), (0.24, 0.5, 2), (0.26, 0.5, 1), (0.06, 0.5, 3)]
    params = [SamplingParams(min_p=p, temperature=t) for p, t, _ in cases] + [SamplingParams(min_p=1.0)] * 2
    assert kept_counts(logits, params).tolist() == [kept for _, _, kept in cases] + [1, 1]


@pytest.mark.parametrize("top_p", [1e-30, 5e-324, 1e-7])
def test_tiny_top_p_keeps_the_most_likely_token_only(top_p):
    logits = np.random.default_rng(0).normal(size=(8, 97)).astype(np.float32)
    assert (kept_counts(logits, [SamplingParams(top_p=top_p)] * 8) == 1).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_of_nothing_but_nan_or_infinity_end_and_leave_neighbours_alone(value):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(8, 97)).astype(np.float32)
    scores = rng.normal(size=(8, 97)).astype(np.float32)
    params = [SamplingParams(top_k=k, top_p=p, min_p=0.01) for k in (5, 80) for p in (0.5, 1.0)] * 2
    expected, _ = draw(logits, scores, draws_of(params))
    logits[3] = value
    scores[3] = value
    tokens, best = draw(logits, scores, draws_of(params))
    others = np.arange(8) != 3
    assert np.array_equal(np.asarray(tokens)[others], np.asarray(expected)[others])
    assert 0 <= int(tokens[3]) < 97
    assert not np.isfinite(best[3])
