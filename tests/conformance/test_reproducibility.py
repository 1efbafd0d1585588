"""A request's tokens and log-probability bits do not depend on what else runs, nor on how it is cut up.

Tiny random models, mixed requests (greedy, sampled, filtered, penalized, several samples, log-probabilities); every
setting is compared with each request alone in a roomy engine, bit for bit.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
from support import EOS, TINY, bits, pool_bytes, prompts, run, tiny_engine

from jaxllm.sampling_params import SamplingParams

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


def mixed_requests(count, seed):
    """Random requests that use every sampling option, with prompts that share prefixes."""
    generator = np.random.default_rng(seed)
    texts = prompts(count, seed, low=2, high=60)
    shared = prompts(1, seed + 1, low=40, high=41)[0]
    requests = []
    for number, prompt in enumerate(texts):
        if number % 3 == 0:
            prompt = shared[: generator.integers(8, 40)] + prompt[:20]
        options = {"max_tokens": int(generator.integers(1, 24)), "seed": int(generator.integers(2**62)),
                   "temperature": float(generator.choice([0.0, 0.5, 1.0, 1.5])),
                   "ignore_eos": bool(generator.integers(2)), "priority": int(generator.integers(3))}
        for name, value in {
            "top_k": int(generator.integers(1, 30)), "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2,
            "presence_penalty": 0.5, "frequency_penalty": 0.3, "logprobs": int(generator.integers(0, 6)),
            "prompt_logprobs": int(generator.integers(0, 4)), "n": int(generator.integers(2, 5)),
            "logit_bias": {int(generator.integers(8, 190)): 3.0}, "min_tokens": 1,
            "allowed_token_ids": sorted(set(generator.integers(0, TINY["vocab_size"], 60).tolist()) | {EOS}),
            "banned_token_ids": [int(generator.integers(8, 190))], "stop_token_ids": [int(generator.integers(8, 190))],
        }.items():
            if generator.random() < 0.25:
                options[name] = value
        if not set(options.get("allowed_token_ids", [0, 1])) - set(options.get("banned_token_ids", [])):
            del options["banned_token_ids"]
        requests.append((prompt, SamplingParams(**options)))
    return requests


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
