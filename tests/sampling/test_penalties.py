"""Bias, penalties and masks, and the state behind them: against a loop over tokens in float64."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling.oracle import adjust, build_rows

from jaxllm.sampling import RowTable, init_state, set_slot, slot_row
from jaxllm.sampling.penalties import apply_state
from jaxllm.sampling.state import SamplingState, count_tokens
from jaxllm.sampling_params import SamplingParams

V = 23
STOPS = (2, 7)
apply = jax.jit(apply_state)
place = jax.jit(set_slot)
TOKENS = st.lists(st.integers(0, V - 1), min_size=0, max_size=12)
PENALTY = st.sampled_from([-2.0, -0.5, 0.0, 0.3, 2.0])
PARAMS = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3, 4.0]),
    frequency_penalty=PENALTY,
    presence_penalty=PENALTY,
    min_tokens=st.sampled_from([0, 1, 3, 6]),
    logit_bias=st.one_of(st.none(), st.dictionaries(st.integers(0, V - 1), st.floats(-50, 50), max_size=4)),
    allowed_token_ids=st.one_of(st.none(), TOKENS.filter(bool)),
    banned_token_ids=st.one_of(st.none(), TOKENS),
)


def fill(params: list[SamplingParams], prompts: list[list[int]], outputs: list[list[int]]) -> SamplingState:
    state = init_state(len(params), V)
    for slot, one in enumerate(params):
        state = place(state, np.int32(slot), slot_row(one, prompts[slot], outputs[slot], STOPS, V))
    return state


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_logits_match_the_loop_for_any_options(data):
    """Tolerance: a handful of float32 roundings of values up to 200."""
    params = data.draw(st.lists(PARAMS, min_size=8, max_size=8))
    prompts = data.draw(st.lists(TOKENS, min_size=8, max_size=8))
    outputs = data.draw(st.lists(TOKENS, min_size=8, max_size=8))
    logits = np.array(data.draw(st.lists(st.floats(-30, 30, width=32), min_size=8 * V, max_size=8 * V)), np.float32)
    logits = logits.reshape(8, V)
    table = RowTable(8)
    for slot, one in enumerate(params):
        table.set_slot(slot, one, 0, 0, len(prompts[slot]))
    positions = np.array([len(p) + len(o) for p, o in zip(prompts, outputs, strict=True)])
    got = np.asarray(apply(logits, table.rows(np.arange(8), positions, 8), fill(params, prompts, outputs)))
    for row in range(8):
        expected = adjust(logits[row], params[row], prompts[row], outputs[row], STOPS)
        np.testing.assert_allclose(got[row], expected, rtol=1e-6, atol=1e-4)


def test_rows_without_state_do_not_see_what_an_earlier_request_left_in_their_slot():
    state = fill([SamplingParams(banned_token_ids=[0, 1, 2], presence_penalty=2.0)] * 8, [[3]] * 8, [[4]] * 8)
    logits = np.random.default_rng(0).normal(size=(8, V)).astype(np.float32)
    rows = build_rows([SamplingParams(top_k=3), SamplingParams(presence_penalty=1.0)] * 4)
    got = np.asarray(apply(logits, rows, state))
    assert np.array_equal(got[::2], logits[::2])
    assert not np.array_equal(got[1::2], logits[1::2])


def test_stop_tokens_are_masked_until_min_tokens_and_every_one_of_them():
    params = SamplingParams(min_tokens=5)
    state = fill([params], [[1, 3, 4]], [[]])
    table = RowTable(1)
    table.set_slot(0, params, 0, 0, 3)
    for generated in range(8):
        rows = table.rows(np.array([0]), np.array([3 + generated]), 8)
        got = np.asarray(apply(np.zeros((8, V), np.float32), rows, state))
        masked = np.flatnonzero(np.isinf(got[0])).tolist()
        assert masked == (list(STOPS) if generated < 5 else [])
        assert (got[1:] == 0).all()  # padding


@pytest.mark.parametrize("bias", [1e300, -1e300, 1e38])
@pytest.mark.parametrize("penalty", [1e-300, 1e300])
def test_huge_biases_and_penalties_stay_finite(bias, penalty):
    params = SamplingParams(logit_bias={0: bias}, repetition_penalty=penalty, frequency_penalty=2.0)
    logits = np.tile(np.linspace(-1e30, 1e30, V, dtype=np.float32), (8, 1))
    state = fill([params] * 8, [[0, 5, V - 1]] * 8, [[1, 1]] * 8)
    assert np.isfinite(np.asarray(apply(logits, build_rows([params] * 8), state))).all()


def test_infinities_and_nan_of_the_model_are_neither_hidden_nor_made():
    params = SamplingParams(logit_bias={0: 1.0}, repetition_penalty=2.0)
    logits = np.zeros((8, V), np.float32)
    logits[:, :3] = [-np.inf, np.inf, np.nan]
    got = np.asarray(apply(logits, build_rows([params] * 8), fill([params] * 8, [[0, 1, 2]] * 8, [[]] * 8)))
    np.testing.assert_array_equal(got[:, :3], logits[:, :3])


def test_counts_follow_the_tokens_and_skip_padding_and_rows_without_a_token():
    state = init_state(4, V)
    slots, tokens = np.array([2, 0, 4, 1], np.int32), np.array([5, 6, 7, -1], np.int32)
    for _ in range(3):
        state = jax.jit(count_tokens)(state, slots, slots, tokens)
    expected = np.zeros((4, V), np.int32)
    expected[2, 5] = expected[0, 6] = 3
    assert np.array_equal(state.counts, expected)


def test_a_slot_row_restores_a_preempted_request():
    """Counting step by step and building from the finished output give the same state."""
    params = SamplingParams(presence_penalty=1.0, min_tokens=3, banned_token_ids=[9])
    output = [5, 5, 8, 5]
    stepped = fill([params], [[1, 2]], [[]])
    for token in output:
        stepped = jax.jit(count_tokens)(stepped, *np.array([[0], [2], [token]], np.int32))
    rebuilt = fill([params], [[1, 2]], [output])
    jax.tree.map(np.testing.assert_array_equal, stepped, rebuilt)


def test_slot_row_refuses_ids_outside_the_vocabulary():
    with pytest.raises(IndexError):
        slot_row(SamplingParams(), [V], [], [], V)
    with pytest.raises(IndexError):
        slot_row(SamplingParams(), [], [V], [], V)
    with pytest.raises(IndexError):
        slot_row(SamplingParams(min_tokens=1), [], [], [V], V)
