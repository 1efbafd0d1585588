"""The host's table of parameters, and the variant that a batch needs."""

from __future__ import annotations

import numpy as np
import pytest
from sampling.oracle import build_rows

from jaxllm.errors import ParameterError
from jaxllm.sampling import RowTable, SamplingRows, Variant, needs_state, variant_of
from jaxllm.sampling_params import MAX_SEED, SamplingParams

FULL_OPTIONS = {
    "top_k": 2,
    "top_p": 0.9,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "logprobs": 0,
    "min_tokens": 1,
    "logit_bias": {1: 1.0},
    "allowed_token_ids": [1],
    "banned_token_ids": [1],
    "bad_words": ["word"],
    "logits_processors": ["mine"],
    "logprob_token_ids": [1],
}


def on_device(rows: SamplingRows) -> SamplingRows:
    import jax

    return jax.tree.map(jax.numpy.asarray, rows)


@pytest.mark.parametrize("name", FULL_OPTIONS)
def test_every_option_beyond_temperature_needs_the_full_variant(name):
    assert variant_of(SamplingParams(**{name: FULL_OPTIONS[name]})) == Variant.FULL


def test_the_smallest_variant_is_chosen():
    assert variant_of(SamplingParams()) == Variant.SAMPLED
    assert variant_of(SamplingParams(temperature=0)) == Variant.GREEDY
    assert variant_of(SamplingParams(top_k=1)) == Variant.GREEDY
    # Filters always keep the token that greedy takes.
    assert variant_of(SamplingParams(temperature=0, top_p=0.5, top_k=7, min_p=0.2)) == Variant.GREEDY
    assert variant_of(SamplingParams(temperature=0, presence_penalty=1.0)) == Variant.FULL
    assert variant_of(SamplingParams(logit_bias={}, banned_token_ids=[], top_k=-1)) == Variant.SAMPLED


def test_state_is_needed_for_history_biases_and_masks_only():
    stateless = {"top_k", "top_p", "min_p", "logprobs", "logprob_token_ids"}
    for name, value in FULL_OPTIONS.items():
        assert needs_state(SamplingParams(**{name: value})) == (name not in stateless)


def test_a_batch_needs_the_largest_variant_and_min_tokens_only_until_they_are_there():
    table = RowTable(4)
    for slot, params in enumerate(
        [SamplingParams(temperature=0), SamplingParams(), SamplingParams(top_p=0.5), SamplingParams(min_tokens=3)]
    ):
        table.set_slot(slot, params, 0, 0, 10)

    def variant(*slots: int, position: int = 50) -> Variant:
        return table.variant(np.array(slots, np.int32), np.full(len(slots), position, np.int32))

    assert variant() == Variant.GREEDY
    assert variant(0) == Variant.GREEDY
    assert variant(0, 1) == Variant.SAMPLED
    assert variant(1, 2, 0) == Variant.FULL
    assert variant(3, position=12) == Variant.FULL
    assert variant(3, position=13) == Variant.SAMPLED


def test_rows_hold_each_slots_parameters_in_the_order_asked_for():
    table = RowTable(5)
    table.set_slot(
        3,
        SamplingParams(
            temperature=0.5, top_p=0.25, top_k=9, min_p=0.125, repetition_penalty=1.5, frequency_penalty=0.75,
            presence_penalty=-1.0, min_tokens=4, logprobs=2,
        ),
        MAX_SEED - 1, 6, 10,
    )
    table.set_slot(0, SamplingParams(temperature=0, top_k=5, top_p=0.5), 5, 0, 2)
    rows = on_device(table.rows(np.array([0, 3]), np.array([8, 13]), 8))
    assert rows.num_rows == 8
    assert rows.slot.tolist() == [0, 3] + [5] * 6
    assert rows.position.tolist()[:2] == [8, 13]
    assert rows.temperature.tolist() == [1, 0.5] + [1] * 6
    assert rows.draws.greedy.tolist() == [True, False] + [True] * 6
    assert rows.num_prompt.tolist()[:2] == [2, 10]
    assert rows.draws.top_p.tolist() == [1, 0.25] + [1] * 6
    assert rows.draws.top_k.tolist() == [0, 9] + [0] * 6
    assert rows.draws.log_min_p.tolist() == [-np.inf, np.float32(np.log(0.125))] + [-np.inf] * 6
    assert rows.repetition_penalty.tolist() == [1, 1.5] + [1] * 6
    assert rows.frequency_penalty.tolist()[:2] == [0, 0.75]
    assert rows.presence_penalty.tolist()[:2] == [0, -1]
    assert rows.stops_masked.tolist() == [False, True] + [False] * 6
    for flag in (rows.uses_state, rows.uses_penalties, rows.wants_logprobs):
        assert flag.tolist() == [False, True] + [False] * 6
    high, low, sample, position = rows.draws.noise_words
    assert (int(high[1]) << 32) + int(low[1]) == MAX_SEED - 1
    assert int(sample[1]) == 6
    assert int(position[1]) == 13


def test_a_slot_keeps_nothing_of_its_previous_request():
    table = RowTable(1)
    table.set_slot(0, SamplingParams(**FULL_OPTIONS), 99, 3, 10)
    table.set_slot(0, SamplingParams(), 7, 0, 2)
    fresh = build_rows([SamplingParams()], seeds=[7], position=9, prompt_length=2)
    again = table.rows(np.array([0]), np.array([9]), 1)
    assert np.array_equal(again.numbers, fresh.numbers)


def test_a_step_does_not_change_the_rows_of_the_step_before():
    table = RowTable(2)
    first = table.rows(np.array([0]), np.array([4]), 8)
    before = first.numbers.copy()
    table.set_slot(0, SamplingParams(), 1, 0, 2)
    table.rows(np.array([0]), np.array([5]), 8)
    assert np.array_equal(first.numbers, before)


@pytest.mark.parametrize(("temperature", "expected"), [(5e-324, 1e-38), (1e-30, 1e-30), (1e300, 8.5e37)])
def test_temperatures_beyond_float32_become_the_nearest_it_holds(temperature, expected):
    rows = build_rows([SamplingParams(temperature=temperature)])
    assert float(rows.temperature[0]) == pytest.approx(expected, rel=0.2)


def test_wrong_slots_seeds_and_buckets_are_named():
    table = RowTable(2)
    with pytest.raises(ParameterError, match="slot=2"):
        table.set_slot(2, SamplingParams(), 0, 0, 1)
    with pytest.raises(ParameterError, match="seed=-1"):
        table.set_slot(0, SamplingParams(), -1, 0, 1)
    with pytest.raises(ParameterError, match="bucket=1"):
        table.rows(np.array([0, 1]), np.array([3, 3]), 1)
