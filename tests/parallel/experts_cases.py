"""Replicas whose experts are spread over all of them, which take every step together, give what one device gives."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from models.fixture_models import FIXTURES
from parallel.combinations_cases import (
    BLOCK,
    POOL,
    bytes_by_device,
    check,
    engine_over,
    expected,
    model_and_params,
    nbytes,
    requests,
)
from parallel.engines import all_at_once
from parallel.tensor_models import SIZES, difference, engine_of, model_of, outcome, plain_requests
from support import bits, greedy, prompts

from jaxllm import LLM
from jaxllm.engine.build import EngineSizes, build_engine
from jaxllm.errors import EngineError, ParameterError
from jaxllm.parallel.mesh import chosen_mesh
from jaxllm.parallel.pipeline import replica_partitions

_ENGINES = {}


def spread(data, tensor=1, **sizes):
    """An engine over so many devices, made once."""
    key = (data, tensor, *sizes.items())
    if key not in _ENGINES:
        _ENGINES[key] = engine_over("moe", data, 1, tensor, by_expert=data * tensor > 1, **sizes)
    return _ENGINES[key]


def check_shares(engine, data, tensor):
    """A device has one of as many parts of the experts as there are devices, of all else what it has in its replica,
    and its replica's own cache."""
    runner = engine.replicas[0].runner
    experts, layers = nbytes(runner.model, "experts"), nbytes(runner.model, "layers.")
    whole = nbytes(runner.model, "layers.", "norm") + nbytes(runner.model, "layers.", "router")
    held = bytes_by_device(jax.tree.leaves(runner.weights.layers))
    assert len(held) == data * tensor
    assert set(held.values()) == {experts // (data * tensor) + (layers - experts - whole) // tensor + whole}
    for number, replica in enumerate(engine.replicas):
        cached = bytes_by_device(jax.tree.leaves(replica.runner.cache))
        assert sorted(device.id for device in cached) == list(range(number * tensor, (number + 1) * tensor))
        assert max(cached.values()) <= POOL


@pytest.mark.sweep
def test_eight_replicas_give_what_one_device_gives():
    """Fewer are among ``combinations_cases.py``."""
    engine = spread(8)
    check(all_at_once(engine, requests()), expected("moe"))
    assert all(stats.num_generated_tokens for stats in engine.replica_stats())


@pytest.mark.sweep
def test_experts_over_eight_devices_leave_each_of_them_a_cache_of_its_own():
    """At equal bytes of the cache on each, eight have at least seven times the tokens."""
    one, eight = engine_over("moe", 1, 1, 1), spread(8)
    assert 8 * eight.config.token_capacity >= 7 * one.config.token_capacity > 0
    check_shares(eight, 8, 1)


def test_an_uneven_tail_ends_with_replicas_that_have_nothing_to_do():
    asked = [([9] * 4, greedy(20)), *((prompt, greedy(1)) for prompt in prompts(3, 6, low=4, high=8))]
    engine = spread(2)
    before = [stats.num_steps for stats in engine.replica_stats()]
    found = all_at_once(engine, asked)
    assert [bits(output) for output in found] == [bits(output) for output in all_at_once(spread(1), asked)]
    steps = [stats.num_steps - each for stats, each in zip(engine.replica_stats(), before, strict=True)]
    assert min(steps) < 5
    assert max(steps) >= 20
    assert engine.step() == []  # and nothing runs where all are idle
    assert [stats.num_steps - each for stats, each in zip(engine.replica_stats(), before, strict=True)] == steps


@pytest.mark.sweep
def test_cached_prefixes_and_preemption_change_nothing():
    """A pool of five usable blocks in each replica: requests of four preempt one another where several are."""
    shared = prompts(1, 3, low=17, high=18)[0]
    asked = [(shared, greedy(14)), *((prompt, greedy(14)) for prompt in prompts(3, 5, low=10, high=17)),
             (shared, greedy(6))]
    wanted = [bits(output) for output in all_at_once(spread(1), asked)]
    engine = spread(2, kv_cache_bytes=POOL * 6 // 16)
    assert [bits(output) for output in all_at_once(engine, asked)] == wanted
    assert any(stats.num_preemptions for stats in engine.replica_stats())
    for cached in (False, True):
        (again,) = all_at_once(engine, [asked[0]])
        assert bits(again) == wanted[0]
        assert again.num_cached_tokens >= 2 * BLOCK or not cached


def test_a_request_that_is_aborted_leaves_the_others_alone():
    asked = [(prompt, greedy(12)) for prompt in prompts(6, 8, low=4, high=10)]
    wanted = [bits(output) for output in all_at_once(spread(1), asked)]
    engine = spread(2)
    names = [engine.add_request(*each) for each in asked]
    done = {}
    for _ in range(4):
        done.update({output.request_id: output for output in engine.step()})
    assert engine.abort(names[2]).outputs[0].finish_reason == "abort"
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step()})
    for number in (0, 1, 3, 4, 5):
        assert bits(done[names[number]]) == wanted[number]


def test_new_parameters_and_sleep_reach_every_replica():
    model, params = model_and_params("moe")
    asked = [(prompt, greedy(5, logprobs=1)) for prompt in prompts(6, 8, low=4, high=10)]
    engine = spread(2)
    first = [bits(output) for output in all_at_once(engine, asked)]
    engine.sleep(1)
    engine.wake_up()
    assert [bits(output) for output in all_at_once(engine, asked)] == first
    for path in ("embedding",):
        np.testing.assert_array_equal(engine.params[path]["weight"], params[path]["weight"])
    engine.update_params(model.init(1, scale=0.2))
    assert [bits(output) for output in all_at_once(engine, asked)] != first
    engine.sleep(2)
    with pytest.raises(EngineError):
        engine.add_request([1], greedy(1))
    engine.wake_up()
    engine.update_params(params)
    assert [bits(output) for output in all_at_once(engine, asked)] == first


def test_all_tokens_of_all_replicas_may_go_to_one_expert():
    """Routers of zeros give all tokens to the first two experts, which one device has."""
    _, params = model_and_params("moe")
    alike = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf * 0 if "router" in jax.tree_util.keystr(path) else leaf, params)
    asked = [(prompt, greedy(5, logprobs=1)) for prompt in prompts(8, 2, low=4, high=14)]
    found = []
    for engine in (spread(1), spread(2)):
        engine.update_params(alike)
        found.append([bits(output) for output in all_at_once(engine, asked)])
        engine.update_params(params)
    assert found[0] == found[1]


def test_lost_device_state_ends_the_requests_of_all_and_new_ones_run():
    engine = spread(2)
    names = [engine.add_request(prompt, greedy(6)) for prompt in prompts(4, 9, low=4, high=10)]
    engine.step()
    engine.replicas[1].runner.newest.delete()
    done = {}
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step()})
    assert all(done[name].error is not None for name in names)
    asked = [(prompt, greedy(2)) for prompt in prompts(4, low=4, high=10)]
    assert [bits(output) for output in all_at_once(engine, asked)] == [
        bits(output) for output in all_at_once(spread(1), asked)]


def test_experts_that_cannot_be_dealt_out_are_refused():
    with pytest.raises(ParameterError, match=r"data_parallel_size=3 .*1, 2, 4, 8"):
        engine_over("moe", 3, 1, 1, by_expert=True)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "kind"), [("deepseek", "I8"), ("gpt_oss", None), ("llama4", None)])
def test_layers_of_every_kind_give_what_one_device_gives(name, kind):
    """Latents and rows of int8; biases; weighed inputs and a shared MLP. Float32, sums in another order: 1e-4."""
    model, params = model_of(name, kind)
    partitions = replica_partitions(model, chosen_mesh(data_parallel_size=2, tensor_parallel_size=2), by_expert=True)
    engine = build_engine(model, lambda: params, EngineSizes(**SIZES), partition=partitions)
    alone = engine_of(model, params, 1)
    for asked in plain_requests():
        equal, apart = difference(outcome(engine, asked), outcome(alone, asked))
        assert equal
        assert apart < 1e-4


@pytest.mark.sweep
def test_a_checkpoint_is_read_into_its_places():
    sizes = {"dtype": "float32", "skip_tokenizer_init": True, "max_model_len": 32, "kv_cache_bytes": 1 << 20,
             "max_num_seqs": 8, "max_num_batched_tokens": 16}
    asked = [[5, 9, 11, 3], [7, 7, 2], [30, 31, 32, 33, 34]]
    alone, two = (LLM(FIXTURES / "deepseek_v3", **sizes, **devices) for devices in (
        {}, {"data_parallel_size": 2, "enable_expert_parallel": True}))
    assert [output.outputs[0].token_ids for output in two.generate(asked, greedy(8))] == [
        output.outputs[0].token_ids for output in alone.generate(asked, greedy(8))]
