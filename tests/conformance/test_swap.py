"""Swapping preempted blocks to host memory changes no bit of any output, and saves computing them anew."""

from __future__ import annotations

import functools

import pytest
from mixes import mixed_requests
from support import bits, greedy, pool_bytes, prompts, run, tiny_engine

from jaxllm.sampling_params import SamplingParams

BLOCKS = 17


def _sizes(dtype, swap_blocks=0, **more):
    swap_bytes = swap_blocks and pool_bytes(swap_blocks - 1, dtype=dtype)
    return {"kv_cache_bytes": pool_bytes(BLOCKS, dtype=dtype), "swap_bytes": swap_bytes,
            "max_num_batched_tokens": 16, **more}


def _long_requests(seed=3):
    """Requests that together need several times the small pool, with every kind of state that a preemption ends."""
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
    kinds = [
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 1.0, "seed": 11, "logprobs": 0, **penalties},
        {"temperature": 0.8, "seed": 12, "n": 3, "top_k": 20, "top_p": 0.9},
        {"temperature": 0.0, "prompt_logprobs": 2, "logprobs": 1},
        {"temperature": 1.2, "seed": 13, "n": 2, "logprobs": 5, "prompt_logprobs": 0, **penalties},
        {"temperature": 0.0, "min_p": 0.1, **penalties},
    ]
    return [(prompt, SamplingParams(max_tokens=50, ignore_eos=True, **options))
            for prompt, options in zip(prompts(len(kinds), seed, low=20, high=60), kinds, strict=True)]


@functools.cache
def _large_pool(dtype):
    engine = tiny_engine(dtype, max_num_batched_tokens=16)
    outputs = [bits(output) for output in run(engine, _long_requests())]
    assert engine.stats().num_preemptions == 0
    return outputs


@pytest.mark.parametrize("caching", [True, pytest.param(False, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("budget", [16, pytest.param(64, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_are_bitwise_those_of_a_large_pool_with_swap_and_with_recomputation(dtype, budget, caching):
    stats = {}
    for name, swap_blocks in (("recompute", 0), ("swap", 60)):
        engine = tiny_engine(dtype, **_sizes(dtype, swap_blocks, max_num_batched_tokens=budget,
                                             enable_prefix_caching=caching))
        outputs = run(engine, _long_requests())
        for number, (output, expected) in enumerate(zip(outputs, _large_pool(dtype), strict=True)):
            assert bits(output) == expected, f"{name}: request {number}"
        stats[name] = engine.stats()
        assert (stats[name].swap_blocks_total, stats[name].swap_blocks_used) == (swap_blocks, 0)
    assert stats["recompute"].num_preemptions > 0
    assert stats["recompute"].num_swapped_out == 0
    assert 0 < stats["swap"].num_swapped_in <= stats["swap"].num_swapped_out
    assert stats["swap"].num_computed_tokens < stats["recompute"].num_computed_tokens


@pytest.mark.sweep
@pytest.mark.parametrize("swap_blocks", [1, 5, 9, 20])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_where_host_memory_has_room_for_some_the_others_are_computed_anew(dtype, swap_blocks):
    engine = tiny_engine(dtype, **_sizes(dtype, swap_blocks))
    assert [bits(output) for output in run(engine, _long_requests())] == _large_pool(dtype)


def test_with_room_for_all_nothing_is_computed_twice():
    requests = [(prompt, greedy(60)) for prompt in prompts(6, 4, low=20, high=60)]
    engine = tiny_engine(**_sizes("float32", 60, enable_prefix_caching=False))
    run(engine, requests)
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert stats.num_computed_tokens == stats.num_prompt_tokens + stats.num_generated_tokens - len(requests)


def test_the_prefix_cache_can_be_reset_while_blocks_are_swapped_out():
    engine = tiny_engine(**_sizes("float32", 60))
    ids = [engine.add_request(prompt, params) for prompt, params in _long_requests()]
    done = {}
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step() if output.finished})
        if engine.stats().swap_blocks_used:
            engine.reset_prefix_cache()
            assert engine.stats().swap_blocks_used == 0
        engine.check_integrity()
    assert [bits(done[name]) for name in ids] == _large_pool("float32")
    assert engine.stats().num_swapped_out > 0


def test_an_aborted_request_gives_its_host_blocks_back():
    engine = tiny_engine(**_sizes("float32", 60))
    ids = [engine.add_request(prompt, params) for prompt, params in _long_requests()]
    while not engine.stats().swap_blocks_used:
        engine.step()
    for name in ids:
        engine.abort(name)
    engine.check_integrity()
    assert (engine.stats().swap_blocks_used, engine.stats().kv_blocks_used) == (0, 0)


@pytest.mark.parametrize("state_lost", [False, True])
def test_after_a_failed_step_the_others_end_as_if_nothing_had_been_swapped(state_lost, monkeypatch):
    engine = tiny_engine(**_sizes("float32", 60))
    runner = engine._runner
    dispatch = runner.dispatch

    def fail_once(plan):
        if not len(plan.swap_out):
            return dispatch(plan)
        monkeypatch.setattr(runner, "dispatch", dispatch)
        if state_lost:
            runner.cache[0]["k"].delete()
        raise RuntimeError("out of memory")

    monkeypatch.setattr(runner, "dispatch", fail_once)
    outputs = run(engine, _long_requests())
    failed = [output.error is not None for output in outputs]
    assert any(failed)
    for output, expected, ended in zip(outputs, _large_pool("float32"), failed, strict=True):
        assert ended or bits(output) == expected
    assert all(failed) or not state_lost
    assert engine.stats().swap_blocks_used == 0
    assert [bits(output) for output in run(engine, _long_requests())] == _large_pool("float32")


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_random_mixes_are_bitwise_those_of_a_large_pool(dtype, seed):
    requests = mixed_requests(20, seed)
    expected = [bits(output) for output in run(tiny_engine(dtype), requests)]
    swapping = tiny_engine(dtype, **_sizes(dtype, 40, scheduling_policy="priority"))
    assert [bits(output) for output in run(swapping, requests)] == expected
