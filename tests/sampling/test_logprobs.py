"""Log-probabilities: against float64, the same bits in any batch, and their form for the user."""

from __future__ import annotations

import copy
import pickle

import jax
import numpy as np
import pytest
from sampling.oracle import log_softmax, preference

from jaxllm.outputs import Logprob
from jaxllm.sampling import ShortLogprobs, VocabularyLogprobs, mask_padded_vocab, to_logprobs, token_logprobs

report = jax.jit(token_logprobs, static_argnums=2)


@pytest.mark.parametrize("size", [5, 257, 3000])
def test_values_ranks_and_top_tokens_match_float64(size):
    """Tolerance: float32 rounding of values up to 100 and of a sum of positive terms."""
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 6, (24, size)).astype(np.float32)
    logits[0] = 1.0
    logits[1] = rng.integers(-2, 3, size)
    logits[2] += 1e4
    logits[3, 1:] = -np.inf
    targets = rng.integers(0, size, 24).astype(np.int32)
    targets[3] = 0
    got = report(logits, targets, 20)
    assert got.top_ids.shape == (24, min(20, size))
    for row in range(24):
        expected = log_softmax(logits[row])
        order = preference(logits[row])[:20]
        tolerance = 1e-5 if row != 2 else 2e-3
        np.testing.assert_allclose(got.logprob[row], expected[targets[row]], rtol=1e-6, atol=tolerance)
        assert int(got.rank[row]) == 1 + (logits[row] > logits[row, targets[row]]).sum()
        assert np.array_equal(got.top_ids[row], order)
        np.testing.assert_allclose(got.top_logprobs[row], expected[order], rtol=1e-6, atol=tolerance)


def test_extreme_logits_give_finite_or_minus_infinite_values():
    logits = np.zeros((8, 97), np.float32)
    logits[:, 0] = 1e30
    logits[:, 1] = -np.inf
    got = report(logits, np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int32), 3)
    assert np.asarray(got.logprob)[:3].tolist() == [0.0, -np.inf, pytest.approx(-1e30)]
    assert not np.isnan(got.top_logprobs).any()


@pytest.mark.parametrize("size", [257, *(pytest.param(size, marks=pytest.mark.sweep) for size in (31, 4099, 49_152))])
def test_a_row_has_the_same_bits_in_any_number_of_rows_at_any_place(size):
    rng = np.random.default_rng(size)
    logits = rng.normal(0, 4, (64, size)).astype(np.float32)
    targets = rng.integers(0, size, 64).astype(np.int32)
    whole = report(logits, targets, 20)
    for rows in (2, 8, 24):
        order = rng.permutation(64)[:rows]
        part = report(logits[order], targets[order], 20)
        for a, b in zip(part, whole, strict=True):
            assert np.array_equal(np.asarray(a).view(np.int32), np.asarray(b)[order].view(np.int32))


def test_a_row_without_a_token_reports_nan():
    got = report(np.zeros((8, 5), np.float32), np.full(8, -1, np.int32), 2)
    assert np.isnan(got.logprob).all()


def test_padded_vocabulary_is_masked():
    logits = np.ones((8, 10), np.float32)
    masked = np.asarray(mask_padded_vocab(logits, 7))
    assert (masked[:, :7] == 1).all()
    assert (masked[:, 7:] == -np.inf).all()
    assert mask_padded_vocab(logits, 10) is logits


def test_chosen_token_comes_first_and_once():
    top_ids, top_logprobs = [4, 7, 1, 9], [-0.5, -1.0, -1.0, -3.0]
    got = to_logprobs(7, -1.0, 2, top_ids, top_logprobs, 3, lambda i: f"<{i}>")
    assert list(got.items()) == [
        (7, Logprob(-1.0, 2, "<7>")),
        (4, Logprob(-0.5, 1, "<4>")),
        (1, Logprob(-1.0, 2, "<1>")),
    ]
    assert list(to_logprobs(3, -9.0, 40, top_ids, top_logprobs, 0)) == [3]
    far = to_logprobs(3, -9.0, 40, np.array(top_ids, np.int32), np.array(top_logprobs, np.float32), 4)
    assert list(far) == [3, 4, 7, 1, 9]
    assert [entry.rank for entry in far.values()] == [40, 1, 2, 2, 4]
    assert all(type(key) is int and type(entry.logprob) is float for key, entry in far.items())


@pytest.mark.parametrize("remake", [lambda line: line, copy.copy, copy.deepcopy,
                                    lambda line: pickle.loads(pickle.dumps(line))])
def test_a_line_made_when_looked_at_is_the_one_made_at_once_whatever_becomes_of_the_arrays(remake):
    ids, logprobs = np.array([4, 7, 1, 9], np.int32), np.array([-0.5, -1.0, -1.0, -3.0], np.float32)
    expected = to_logprobs(7, -1.0, 2, ids, logprobs, 3, str, -2.0, logprobs - 1)
    line = ShortLogprobs(7, -1.0, 2, ids, logprobs, 3, str, -2.0, logprobs - 1)
    ids[:], logprobs[:] = 0, 0
    line = remake(line)
    assert line == expected
    assert expected == line
    assert list(line.items()) == list(expected.items())
    assert len(line) == 3
    assert repr(line) == repr(expected)
    assert 5 not in line


def test_a_line_is_not_made_until_it_is_looked_at():
    asked = []
    line = ShortLogprobs(7, -1.0, 2, np.array([4, 7], np.int32), np.array([-0.5, -1.0], np.float32), 2, asked.append)
    assert asked == []
    assert line[4].rank == 1
    assert line[7].rank == 2
    assert asked == [7, 4]


def _letter(token_id):
    return "abc"[token_id]


@pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy, lambda line: pickle.loads(pickle.dumps(line))])
def test_a_remade_line_of_the_whole_vocabulary_holds_the_same(remake):
    line = VocabularyLogprobs(1, np.log(np.array([0.25, 0.25, 0.5], np.float32)), None, _letter)
    assert remake(line) == line
    assert dict(remake(line)) == dict(line)
    assert list(remake(line)) == [1, 2, 0]
    assert remake(line)[2] == Logprob(float(np.log(np.float32(0.5))), 1, "c")
