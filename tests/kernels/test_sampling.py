"""``sample_rows``, ``token_logprobs`` and ``log_normalizer``: every implementation against float64 and a sort.

Tolerances: a kept set may end at either side of a limit that float32 cannot tell apart, and a draw may go to either of
two tokens whose scores differ by less than float32's rounding of logits up to 100 and of two logarithms (1e-4).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pallas_kernels import implementations
from pallas_kernels.sampling import DrawParameters, log_normalizer, sample_rows, token_logprobs
from pallas_kernels.sampling.oracle import gumbel_noise, num_kept, preference

IMPLEMENTATIONS = [name for name in implementations("sample_rows") if name != "oracle"]
K = 20
MARGIN = 1e-4


@functools.partial(jax.jit, static_argnames=("implementation", "k"))
def run(logits, draws, raw, implementation, k=K):
    wanted = jnp.ones(logits.shape[0], bool)
    return sample_rows(logits, draws, raw=raw, wants_logprobs=wanted, wants_limit=wanted, k=k,
                       implementation=implementation)


def draws_of(rows: list[dict], **words) -> DrawParameters:
    """Parameters for each row, off where not given."""
    off = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "greedy": False}
    table = {name: np.array([row.get(name, value) for row in rows]) for name, value in off.items()}
    with np.errstate(divide="ignore"):
        log_min_p = np.log(table["min_p"]).astype(np.float32)
    count = len(rows)
    given = {"seed_high": 0, "seed_low": np.arange(count), "sample_index": 0, "position": 7} | words
    columns = (np.broadcast_to(np.asarray(column, np.int64), (count,)).astype(np.uint32) for column in given.values())
    return DrawParameters(table["temperature"].astype(np.float32), table["top_p"].astype(np.float32), log_min_p,
                          table["top_k"].astype(np.int32), table["greedy"], *columns)


def check_row(logits, draw, token, limit_value, limit_token):
    """The limit is at one of the places that float32 allows, and the token the best before it."""
    order = preference(logits)
    scaled = (logits[order].astype(np.float64) - logits[order[0]]) / draw.temperature
    low, high = (
        max(1, num_kept(scaled, min(draw.top_p * (1 + sign * MARGIN), 1.0 if draw.top_p == 1 else 1 - 1e-9),
                        draw.log_min_p - sign * MARGIN, draw.top_k)) for sign in (-1, 1))
    possible = int(np.isfinite(scaled).sum())
    if draw.top_k > 0 or draw.top_p < 1 or draw.log_min_p > -np.inf:
        assert logits[limit_token] == limit_value
        kept = 1 + int(np.flatnonzero(order == limit_token)[0])
        assert low <= kept <= high
    else:
        assert (limit_value, limit_token) == (-np.inf, len(logits))
        kept = possible
    if draw.greedy:
        assert token == order[0]
        return
    ids = order[:kept]
    noise = gumbel_noise(*(int(word) for word in draw[5:]), len(logits))
    scores = scaled[:kept] + noise[ids]
    assert token in ids
    assert scores[np.flatnonzero(ids == token)[0]] >= scores.max() - MARGIN * (1 + abs(scores.max()))


def rows_of(result, draws):
    for row in range(len(result.token_ids)):
        yield row, DrawParameters(*(column[row] for column in draws)), *(
            np.asarray(part)[row] for part in (result.token_ids, result.limit_value, result.limit_token))


def mixed_logits(rng: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Of any size, tied, zeros of both signs and -inf, in random shares."""
    shape = (rows, size)
    kinds = np.stack([rng.normal(0, 4, shape), rng.integers(-3, 4, shape), np.full(shape, -0.0),
                      np.full(shape, -np.inf)])
    pick = np.stack([rng.choice(4, size=size, p=rng.dirichlet([1, 1, 0.3, 0.3])) for _ in range(rows)])
    logits = np.take_along_axis(kinds, pick[None], 0)[0].astype(np.float32)
    logits[:, size // 2] = 1.0
    return logits


ROW = st.fixed_dictionaries({
    "temperature": st.sampled_from([0.01, 0.1, 0.7, 1.0, 3.0, 100.0]),
    "top_k": st.one_of(st.just(0), st.integers(1, 700)),
    "top_p": st.one_of(st.just(1.0), st.floats(2.0**-20, 1.0, width=32)),
    "min_p": st.one_of(st.just(0.0), st.floats(2.0**-20, 1.0, width=32)),
    "greedy": st.sampled_from([False, False, False, True]),
})


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), rows=st.lists(ROW, min_size=8, max_size=8))
def test_kept_set_and_winner_are_those_of_a_sort(implementation, seed, rows):
    rng = np.random.default_rng(seed)
    logits, draws = mixed_logits(rng, 8, 601), draws_of(rows, seed_high=rng.integers(2**31), position=seed)
    for row, *found in rows_of(run(logits, draws, None, implementation), draws):
        check_row(logits[row], *found)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "size", [1, 17, 257, 5000, *(pytest.param(size, marks=pytest.mark.sweep) for size in (15, 16, 255, 256, 49_152))])
def test_any_vocabulary_size_and_kind_of_distribution(implementation, size):
    rng = np.random.default_rng(size)
    logits = np.stack([rng.normal(0, 1, size), rng.normal(0, 6, size), -3 * np.log(1 + rng.permutation(size)),
                       np.full(size, 2.5), np.where(np.arange(size) == size - 1, 0, -np.inf), rng.normal(0, 1e-3, size),
                       rng.normal(0, 1e30, size), np.full(size, -0.0)]).astype(np.float32)
    for options in ({}, {"top_p": 0.95}, {"top_p": 0.5, "temperature": 2.0}, {"top_k": 40}, {"top_k": 1000},
                    {"min_p": 0.05}, {"top_k": 300, "top_p": 0.9, "min_p": 0.001}, {"top_p": 0.9999}):
        draws = draws_of([options] * 8)
        for row, *found in rows_of(run(logits, draws, None, implementation, min(K, size)), draws):
            check_row(logits[row], *found)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(("top_p", "kept"), [(0.24, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (0.76, 4)])
def test_top_p_ends_exactly_where_it_is_reached(implementation, top_p, kept):
    logits = np.full((8, 97), -np.inf, np.float32)
    logits[:, [3, 8, 20, 33]] = 2.0
    result = run(logits, draws_of([{"top_p": top_p}] * 8), None, implementation)
    assert np.asarray(result.limit_token).tolist() == [[3, 8, 20, 33][kept - 1]] * 8


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_top_k_keeps_exactly_k_with_ties_to_the_lowest_ids(implementation):
    rng = np.random.default_rng(0)
    logits = rng.integers(-2, 3, (64, 6000)).astype(np.float32)
    counts = [1, 2, 19, 20, 21, 23, 24, 25, 64, 375, 376, 377, 5999, 6000, 6001, 2**31 - 1] * 4
    result = run(logits, draws_of([{"top_k": k} for k in counts]), None, implementation)
    for row, k in enumerate(counts):
        assert int(result.limit_token[row]) == preference(logits[row])[min(k, 6000) - 1]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_without_a_token_leave_the_others_alone(implementation, value):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(16, 601)).astype(np.float32)
    options = [{"top_k": k, "top_p": p, "greedy": greedy}
               for k in (0, 80) for p in (0.5, 1.0) for greedy in (False, True)]
    draws = draws_of(options * 2)
    expected = run(logits, draws, None, implementation)
    for broken in (logits.copy(), None):
        if broken is None:  # in the logits as the model gave them alone
            broken = logits.copy()
            broken[3, 600] = value
            result = run(logits, draws, broken, implementation)
            dead = [] if value == -np.inf else [3]
        else:
            broken[3] = value
            broken[9, 77] = np.nan
            result = run(broken, draws, None, implementation)
            dead = [3, 9]
        others = np.setdiff1d(np.arange(16), dead)
        assert (np.asarray(result.token_ids)[dead] == -1).all()
        assert np.array_equal(np.asarray(result.token_ids)[others], np.asarray(expected.token_ids)[others])
        assert np.all((np.asarray(result.logprobs.top_ids) >= 0) & (np.asarray(result.logprobs.top_ids) < 601))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("size", [5, 257, 3000])
def test_logprobs_match_float64(implementation, size):
    """Tolerance: the rounding of differences up to 1e2, and of a sum of positive terms; 1e4 has steps of 1e-3."""
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 6, (24, size)).astype(np.float32)
    logits[0], logits[1], logits[3, 1:] = 1.0, rng.integers(-2, 3, size), -np.inf
    logits[2] += 1e4
    targets = rng.integers(0, size, 24).astype(np.int32)
    targets[3], targets[4] = 0, -1
    got = jax.jit(lambda *x: token_logprobs(*x, K, implementation=implementation))(logits, targets)
    want = token_logprobs(logits, targets, K, implementation="oracle")
    assert np.array_equal(got.top_ids, want.top_ids)
    assert np.array_equal(np.delete(got.rank, 4), np.delete(want.rank, 4))
    for one, other in ((got.logprob, want.logprob), (got.top_logprobs, want.top_logprobs)):
        np.testing.assert_allclose(np.delete(one, 2, 0), np.delete(other, 2, 0), rtol=1e-6, atol=2e-6)
        np.testing.assert_allclose(one[2], other[2], atol=2e-3)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_three_operations_report_the_same_bits(implementation):
    rng = np.random.default_rng(0)
    logits = mixed_logits(rng, 16, 3001)
    sampled = run(logits, draws_of([{}, {"top_p": 0.9}, {"temperature": 0.5}, {"greedy": True}] * 4), None,
                  implementation)
    apart = jax.jit(lambda *x: token_logprobs(*x, K, implementation=implementation))(logits, sampled.token_ids)
    jax.tree.map(np.testing.assert_array_equal, sampled.logprobs, apart)
    best, log_total = jax.jit(functools.partial(log_normalizer, implementation=implementation))(logits)
    top = np.take_along_axis(logits, np.asarray(apart.top_ids), 1)
    assert np.array_equal((top - np.asarray(best)[:, None]) - np.asarray(log_total)[:, None], apart.top_logprobs)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_row_has_the_same_bits_in_any_company_and_with_any_flags(implementation):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (64, 2500)).astype(np.float32)
    options = [{}, {"top_p": 0.9}, {"top_k": 5}, {"top_k": 2000, "min_p": 1e-4}, {"greedy": True},
               {"temperature": 1e-3}, {"temperature": 50.0, "top_p": 0.99}, {"min_p": 0.3}] * 8
    draws = draws_of(options, seed_low=np.arange(64) * 12345)
    whole = run(logits, draws, None, implementation)
    for count in (1, 2, 8, 24):
        order = rng.permutation(64)[:count]
        part = run(logits[order], DrawParameters(*(column[order] for column in draws)), None, implementation)
        jax.tree.map(lambda a, b, order=order: np.testing.assert_array_equal(a, np.asarray(b)[order]), part, whole)
    bare = jax.jit(lambda *x: sample_rows(*x, implementation=implementation))(logits, draws)
    assert np.array_equal(bare.token_ids, whole.token_ids)
    copied = run(logits, draws, logits.copy(), implementation)
    jax.tree.map(np.testing.assert_array_equal, copied, whole)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("changed", ["seed_high", "seed_low", "sample_index", "position"])
def test_frequencies_follow_the_filtered_softmax_along_every_word(implementation, changed):
    """Chi-square over 20,000 draws of top-k 12 at temperature 0.8, words above 2**31 included; the seeds are fixed."""
    rng = np.random.default_rng(1)
    count, size = 20_000, 40
    row = rng.normal(0, 1.5, size).astype(np.float32)
    words = {changed: np.arange(count) + 2**32 - 10_000}
    draws = draws_of([{"temperature": 0.8, "top_k": 12}] * count, **{"seed_low": 5} | words)
    result = run(np.tile(row, (count, 1)), draws, None, implementation)
    kept = preference(row)[:12]
    probabilities = np.exp(row[kept].astype(np.float64) / 0.8)
    seen = np.bincount(result.token_ids, minlength=size)
    assert seen.sum() == seen[kept].sum()
    statistic = stats.chisquare(seen[kept], count * probabilities / probabilities.sum())
    assert statistic.pvalue > 1e-3


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_tokens_of_one_chance_in_a_million_get_their_share(implementation):
    """A token of probability 2**-16 in 2**20 draws of two: 16 expected, sigma 4."""
    count = 2**20
    logits = np.tile(np.array([0.0, -16 * np.log(2)], np.float32), (count, 1))
    draws = draws_of([{}], position=0)
    draws = DrawParameters(*(np.repeat(column, count) for column in draws))._replace(
        position=np.arange(count, dtype=np.uint32))
    result = jax.jit(lambda *x: sample_rows(*x, filters=False, implementation=implementation))(logits, draws)
    assert 4 <= int(np.sum(result.token_ids)) <= 28


@pytest.mark.parametrize(("options", "message"), [
    ({"k": 602}, "k=602 is not allowed"),
    ({"k": -1}, "k=-1 is not allowed"),
    ({"raw": np.zeros((8, 5), np.float32)}, "raw must be as logits"),
    ({"wants_limit": np.zeros(7, bool)}, r"wants_limit must be bool \[B\] with B = 8"),
])
def test_operands_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        sample_rows(np.zeros((8, 601), np.float32), draws_of([{}] * 8), **options)
