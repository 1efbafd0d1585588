"""A request's tokens and log-probability bits do not depend on what else runs, nor on how it is cut up.

Tiny random models, mixed requests (greedy, sampled, filtered, penalized, several samples, log-probabilities); every
setting is compared with each request alone in a roomy engine, bit for bit.
"""

from __future__ import annotations

import functools

import pytest
from mixes import mixed_requests
from support import bits, pool_bytes, run, tiny_engine

SETTINGS = {
    "all together": {},
    "budget of 16": {"max_num_batched_tokens": 16},
    "budget of 37": {"max_num_batched_tokens": 37},
    "two at a time": {"max_num_seqs": 2},
    "preempted": {"kv_cache_bytes": None},
    "no prefix cache": {"enable_prefix_caching": False},
    "by priority": {"scheduling_policy": "priority"},
}
REPRESENTATIVES = ("preempted", "budget of 16")


@functools.cache
def _alone(dtype, seed):
    engine = tiny_engine(dtype, enable_prefix_caching=False)
    return [bits(run(engine, [request])[0]) for request in mixed_requests(20, seed)]


def _check(dtype, seed, settings):
    settings = dict(settings)
    if settings.get("kv_cache_bytes", 0) is None:
        settings["kv_cache_bytes"] = pool_bytes(17, dtype=dtype)
    engine = tiny_engine(dtype, **settings)
    requests = mixed_requests(20, seed)
    outputs = run(engine, requests)
    for number, (output, expected) in enumerate(zip(outputs, _alone(dtype, seed), strict=True)):
        assert bits(output) == expected, f"request {number}, {requests[number][1]}"
    return engine


@pytest.mark.parametrize("setting", [
    name if name in REPRESENTATIVES else pytest.param(name, marks=pytest.mark.sweep) for name in SETTINGS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_outputs_are_bitwise_those_of_each_request_alone(setting, dtype):
    engine = _check(dtype, 0, SETTINGS[setting])
    if setting == "preempted":
        assert engine.stats().num_preemptions > 0


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(1, 9))
def test_outputs_are_bitwise_those_of_each_request_alone_in_more_mixes(seed):
    for dtype in ("float32", "bfloat16"):
        _check(dtype, seed, SETTINGS["preempted"])


def test_prefix_cache_hits_change_nothing():
    engine = tiny_engine("bfloat16")
    requests = mixed_requests(20, 0)
    run(engine, requests)
    again = run(engine, requests)
    assert sum(output.num_cached_tokens for output in again) > 0
    assert [bits(output) for output in again] == _alone("bfloat16", 0)
