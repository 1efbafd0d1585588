"""An engine's seed gives each request that brings none a seed of its own."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scripted import scripted_engine

from jaxllm.engine.seeds import derived_seed
from jaxllm.errors import ParameterError
from jaxllm.sampling_params import MAX_SEED, SamplingParams


def seeds_of(engine, params):
    ids = [engine.add_request([1, 2], each) for each in params]
    found = {}
    while engine.has_unfinished():
        found |= {output.request_id: output.outputs[0].seed for output in engine.step()}
    return [found[request_id] for request_id in ids]


def test_derived_seeds_are_a_function_of_both_numbers_and_differ():
    seeds = {(seed, arrival): derived_seed(seed, arrival) for seed in (0, 1, 11, MAX_SEED) for arrival in range(200)}
    assert len(set(seeds.values())) == len(seeds)
    assert all(0 <= value <= MAX_SEED for value in seeds.values())
    assert all(derived_seed(*key) == value for key, value in seeds.items())
    assert derived_seed(0, 0) == 6213027144842677344


def test_equal_engine_seeds_repeat_and_requests_keep_their_own():
    params = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=1, seed=5), SamplingParams(max_tokens=1)]
    runs = [seeds_of(scripted_engine([9], seed=3), params) for _ in range(2)]
    assert runs[0] == runs[1] == [derived_seed(3, 0), 5, derived_seed(3, 2)]
    assert seeds_of(scripted_engine([9], seed=4), params)[0] != runs[0][0]


def test_a_refused_request_takes_no_place_in_the_order():
    engine = scripted_engine([9], seed=3)
    with pytest.raises(ParameterError):
        engine.add_request([], SamplingParams(max_tokens=1))
    assert seeds_of(engine, [SamplingParams(max_tokens=1)]) == [derived_seed(3, 0)]


def test_without_an_engine_seed_every_request_differs():
    seeds = [seeds_of(scripted_engine([9]), [SamplingParams(max_tokens=1)] * 3) for _ in range(2)]
    assert len({seed for run in seeds for seed in run}) == 6


@pytest.mark.parametrize("seed", [None, 3])
def test_the_users_random_states_are_not_touched(seed):
    before = random.getstate(), np.random.get_state()[1].tolist()
    seeds_of(scripted_engine([9], seed=seed), [SamplingParams(max_tokens=1)] * 3)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "0", True])
def test_seeds_that_cannot_be_are_refused(seed):
    with pytest.raises(ParameterError, match="seed"):
        scripted_engine([9], seed=seed)
