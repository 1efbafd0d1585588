"""A seeded request's tokens depend on its seed, sample index and positions: not on batch mates, order or preemption."""

from __future__ import annotations

import functools
import random

import jax
import numpy as np
import pytest
from scripted_model import START, engine_on, flat_table
from support import bits, greedy, pool_bytes, prompts, run, tiny_engine

from jaxllm.sampling_params import SamplingParams

SEEDED = SamplingParams(seed=7, max_tokens=16, ignore_eos=True)


def _unseeded(count, **options):
    return [([START], SamplingParams(max_tokens=20, ignore_eos=True, **options)) for _ in range(count)]


@pytest.mark.case(17)
@pytest.mark.parametrize("mates", [
    [], _unseeded(1), _unseeded(7), _unseeded(2, top_p=0.5), _unseeded(2, logprobs=3), [([START], greedy(20))] * 3,
    [([START], SEEDED)] * 3, [([START] * 9, SEEDED.replace(seed=8, n=3))],
], ids=["alone", "one", "seven", "filtered", "logprobs", "greedy", "twins", "others"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_a_seeded_request_gets_its_tokens_whatever_its_batch_mates(mates, place):
    request = ([START], SEEDED)
    (alone,) = run(engine_on(flat_table()), [request])
    for _ in range(2):
        outputs = run(engine_on(flat_table()), [request, *mates] if place == "first" else [*mates, request])
        assert bits(outputs[0 if place == "first" else -1]) == bits(alone)


@pytest.mark.case(17)
def test_unseeded_requests_differ_and_each_reports_the_seed_that_repeats_it():
    outputs = run(engine_on(flat_table()), _unseeded(6))
    texts = [tuple(output.outputs[0].token_ids) for output in outputs]
    assert len(set(texts)) == 6
    again = run(engine_on(flat_table()), [
        ([START], SamplingParams(max_tokens=20, ignore_eos=True, seed=output.outputs[0].seed)) for output in outputs])
    assert [tuple(output.outputs[0].token_ids) for output in again] == texts


@pytest.mark.case(17)
def test_the_random_states_of_the_user_are_neither_read_nor_moved():
    texts = set()
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)
        key = jax.random.key(1)
        before = random.getstate(), np.random.get_state()[1].tolist()
        (output,) = run(engine_on(flat_table()), _unseeded(1))
        texts.add(tuple(output.outputs[0].token_ids))
        assert (random.getstate(), np.random.get_state()[1].tolist()) == before
        assert (jax.random.key_data(key) == jax.random.key_data(jax.random.key(1))).all()
    assert len(texts) == 2


@pytest.mark.case(19)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("options", [
    {}, {"top_p": 0.9, "top_k": 20}, {"repetition_penalty": 1.2, "logprobs": 2}], ids=str)
def test_a_seeded_request_that_is_preempted_half_way_gets_the_same_tokens(n, options):
    requests = [(prompt, SEEDED.replace(seed=seed, n=n, max_tokens=24, **options))
                for seed, prompt in enumerate(prompts(6, seed=1, low=8, high=30))]
    wanted = [bits(output) for output in run(_engine(None), requests)]
    outputs = run(_engine(13), requests)
    assert max(output.metrics.num_preemptions for output in outputs) > 0
    assert [bits(output) for output in outputs] == wanted


@functools.cache
def _engine(blocks):
    pool = {} if blocks is None else {"kv_cache_bytes": pool_bytes(blocks)}
    return tiny_engine(max_model_len=64, enable_prefix_caching=False, **pool)


@pytest.mark.case(18)
@pytest.mark.parametrize("length", [21, 24])
def test_samples_of_a_prompt_do_not_see_each_other(length):
    """Whether they share its blocks, in part filled, or each of them computes the prompt anew."""
    request = (prompts(1, seed=8, low=length, high=length + 1)[0], SEEDED.replace(n=4, max_tokens=20))
    together, one_by_one = (run(engine, [request])[0] for engine in (_engine(None), _one_at_a_time()))
    assert len({tuple(sample.token_ids) for sample in together.outputs}) == 4
    assert bits(together) == bits(one_by_one)


@functools.cache
def _one_at_a_time():
    return tiny_engine(max_model_len=64, enable_prefix_caching=False, max_num_seqs=1)


@pytest.mark.case(19)
def test_a_request_that_arrives_while_others_run_gets_the_tokens_of_one_alone():
    (alone,) = run(engine_on(flat_table()), [([START], SEEDED)])
    engine = engine_on(flat_table())
    for mate in _unseeded(2):
        engine.add_request(*mate)
    for _ in range(5):
        engine.step()
    name = engine.add_request([START], SEEDED)
    while engine.has_unfinished():
        for output in engine.step():
            if output.request_id == name:
                last = output
    assert bits(last) == bits(alone)
