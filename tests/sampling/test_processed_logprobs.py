"""Processed log-probabilities: of the very distribution that is drawn from."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from sampling.oracle import adjust, kept_range, log_softmax, preference
from sampling.test_sampler import OPTIONS, OUTPUT, PROMPT, SLOTS, STOPS, V, full_state, logits_for, row_of, run

from jaxllm.sampling import RowTable, Variant, vocab_logprobs
from jaxllm.sampling.sampler import SampleOutput
from jaxllm.sampling_params import SamplingParams

REPORTED = [one.replace(logprobs=5) for one in OPTIONS]


def rows_of(params, processed, position=7):
    table = RowTable(SLOTS)
    for slot, one in enumerate(params):
        table.set_slot(slot, one, slot, 0, 4, processed=processed[slot])
    return table.rows(np.arange(len(params)), np.full(len(params), position), len(params))


@jax.jit
def vocab(logits, rows, state):
    mask = np.full((logits.shape[0], -(-logits.shape[1] // 32)), 0xFFFFFFFF, np.uint32)
    return vocab_logprobs(logits, rows, state, mask)


def expected(logits, params):
    """float64 (log-probabilities, fewest and most tokens that may be kept, order of preference)."""
    adjusted = adjust(logits, params, PROMPT, OUTPUT, STOPS)
    if params.temperature == 0:
        params = params.replace(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    fewest, most = kept_range(adjusted.astype(np.float32), params)
    return adjusted / params.temperature, fewest, most, preference(adjusted.astype(np.float32))


@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_processed_logprobs_are_the_log_softmax_of_what_the_filters_keep(number):
    logits = logits_for(16, seed=3)
    _, output = run(logits, rows_of(REPORTED, [True] * 16), full_state(REPORTED), Variant.FULL)
    scaled, fewest, most, order = expected(logits[number], REPORTED[number])
    token = int(output.token_ids[number])
    logprob, mass = float(output.logprob[number]), float(output.kept_mass[number])
    whole = np.exp(log_softmax(scaled))
    candidates = [
        (log_softmax(np.where(np.isin(np.arange(V), order[:kept]), scaled, -np.inf))[token], whole[order[:kept]].sum())
        for kept in {fewest, most}]
    # float32 sums of 331 terms, and temperatures down to 1e-6 that stretch the rounding of a logit.
    assert min(abs(logprob - want) for want, _ in candidates) <= 1e-4 * max(1, abs(logprob))
    assert min(abs(mass - want) for _, want in candidates) <= 1e-4
    assert float(output.raw_logprob[number]) == pytest.approx(log_softmax(logits[number])[token], abs=1e-4)
    assert int(output.rank[number]) == 1 + int((scaled > scaled[token]).sum())
    possible = np.asarray(output.top_logprobs[number]) > -np.inf
    top = np.asarray(output.top_ids[number])[possible].tolist()
    assert top == order[:len(top)].tolist()
    assert min(20, fewest) <= len(top) <= most


def test_every_token_that_can_be_drawn_has_a_processed_logprob_and_no_other():
    params = SamplingParams(temperature=0.8, top_p=0.6, min_p=0.01, logprobs=0)
    logits = np.repeat(logits_for(1, seed=5), 8, axis=0)
    state = full_state([params] * 8)
    every = vocab(logits, rows_of([params] * 8, [True] * 8), state)
    kept = np.flatnonzero(every.processed[0] > -np.inf)
    drawn = set()
    for position in range(300):
        _, output = run(logits, rows_of([params] * 8, [True] * 8, position), state, Variant.FULL)
        drawn.update(np.asarray(output.token_ids).tolist())
    assert drawn <= set(kept.tolist())
    likely = kept[every.processed[0][kept] > np.log(0.01)]
    assert set(likely.tolist()) <= drawn
    assert np.exp(np.asarray(every.processed[0], np.float64)).sum() == pytest.approx(1, abs=1e-5)


def test_every_tokens_logprob_has_the_bits_that_the_sampler_reports():
    logits, state = logits_for(16, seed=9), full_state(REPORTED)
    processed = [number % 2 == 0 for number in range(16)]
    rows = rows_of(REPORTED, processed)
    _, output = run(logits, rows, state, Variant.FULL)
    for first in (0, 8):
        part = jax.tree.map(lambda array: array[first:first + 8], rows)  # noqa: B023
        every = vocab(logits[first:first + 8], part, state)
        for line, number in enumerate(range(first, first + 8)):
            token, ids = int(output.token_ids[number]), np.asarray(output.top_ids[number])
            of_mode = every.processed if processed[number] else every.raw
            assert float(of_mode[line, token]) == float(output.logprob[number])
            assert np.array_equal(of_mode[line, ids], output.top_logprobs[number])
            assert np.array_equal(every.raw[line, ids], output.raw_top_logprobs[number])
            assert float(every.kept_mass[line]) == float(output.kept_mass[number])


def test_raw_rows_have_the_same_bits_beside_processed_ones():
    logits, state = logits_for(16, seed=4), full_state(REPORTED)
    _, alone = run(logits, rows_of(REPORTED, [False] * 16), state, Variant.FULL)
    _, mixed = run(logits, rows_of(REPORTED, [number % 2 == 0 for number in range(16)]), state, Variant.FULL)
    for row in range(1, 16, 2):
        assert row_of(mixed, row) == row_of(alone, row)
    assert np.array_equal(mixed.token_ids, alone.token_ids)
    assert isinstance(mixed, SampleOutput)
