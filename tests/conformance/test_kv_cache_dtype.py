"""Engines whose cache is in int8 or float8: bits as reproducible as any, values moved with their scales."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import needs_native
from mixes import mixed_requests
from support import TINY, bits, check_idle, greedy, pool_bytes_of, prompts, run, tiny_engine

from jaxllm.beam_search import BeamSearchParams
from jaxllm.runner.keys import Key
from pallas_kernels import Float8Pool, Int8Pool

NATIVE = {"head_dim": 16}
KINDS = [pytest.param("bfloat16", "int8", marks=needs_native), ("float32", "int8"), ("float32", "fp8")]
"""Of the model and the cache: in bfloat16, with heads of a size that they take, native kernels read and write int8."""


def engine_on(dtype, kept="int8", **sizes):
    return tiny_engine(dtype, changes=NATIVE, **{"kv_cache_dtype": kept, **sizes})


def room(blocks):
    return pool_bytes_of(blocks, 8, layers=TINY["num_layers"], kv_heads=TINY["num_kv_heads"], **NATIVE, dtype="int8")


SETTINGS = {
    "all together": {},
    "budget of 16": {"max_num_batched_tokens": 16},
    "preempted": {"kv_cache_bytes": room(17)},
    "preempted to host memory": {"kv_cache_bytes": room(17), "swap_bytes": room(40)},
    "two at a time": {"max_num_seqs": 2},
    "one step at a time": {"overlap": False},
}
REPRESENTATIVES = ("budget of 16", "preempted to host memory")


@functools.cache
def alone(dtype, kept):
    engine = engine_on(dtype, kept, enable_prefix_caching=False, speculative_config=None)
    return [bits(run(engine, [request])[0]) for request in mixed_requests(12, 0)]


@pytest.mark.parametrize(("dtype", "kept"), KINDS)
@pytest.mark.parametrize("setting", [
    name if name in REPRESENTATIVES else pytest.param(name, marks=pytest.mark.sweep) for name in SETTINGS])
def test_outputs_are_bitwise_those_of_each_request_alone(dtype, kept, setting):
    engine = engine_on(dtype, kept, **SETTINGS[setting])
    assert [bits(output) for output in run(engine, mixed_requests(12, 0))] == alone(dtype, kept)
    assert (engine.stats().num_preemptions > 0) == ("preempted" in setting)
    assert (engine.stats().num_swapped_in > 0) == ("host" in setting)
    check_idle(engine)


@pytest.mark.parametrize(("dtype", "kept"), KINDS)
def test_cached_prefixes_and_a_night_of_sleep_change_nothing(dtype, kept):
    engine = engine_on(dtype, kept)
    run(engine, mixed_requests(12, 0))
    again = run(engine, mixed_requests(12, 0))
    assert sum(output.num_cached_tokens for output in again) > 0
    assert [bits(output) for output in again] == alone(dtype, kept)
    engine.sleep(1)
    assert engine._runner.cache == []
    engine.wake_up()
    assert [bits(output) for output in run(engine, mixed_requests(12, 0))] == alone(dtype, kept)


def test_beams_that_fork_copy_scales_with_the_values():
    """Without the scales of a copied block a beam would go on from another's: nothing is computed anew to hide it."""
    (prompt,) = prompts(1, seed=4, low=20, high=21)
    params = BeamSearchParams(beam_width=4, max_tokens=20, ignore_eos=True)
    found = []
    for sizes in ({}, {"block_size": 4}, {"enable_prefix_caching": False, "max_num_batched_tokens": 16}):
        (output,) = run(engine_on("float32", **sizes), [(prompt, params)])
        found.append(bits(output))
    assert found[1:] == found[:1] * 2


@pytest.mark.parametrize(("kept", "kind", "largest"), [("int8", Int8Pool, 127), ("fp8", Float8Pool, 448)])
def test_the_cache_holds_bytes_and_scales_of_what_was_written(kept, kind, largest):
    engine = engine_on("float32", kept, enable_prefix_caching=False)
    run(engine, [(prompts(1)[0], greedy(4))])
    for layer in engine._runner.cache:
        for pool in layer.values():
            assert isinstance(pool, kind)
            values, scales = np.asarray(pool.values[1:], np.float32), np.asarray(pool.scales[1:])
            written = scales > 0
            assert written.any()
            assert (np.abs(values).max(-1)[written] == largest).all()
            assert (values[~written] == 0).all()


@pytest.mark.parametrize(("kept", "bound"), [
    ("int8", 0.02), pytest.param("fp8", 0.15, marks=pytest.mark.sweep)])
def test_logprobs_are_near_those_of_a_plain_cache(kept, bound):
    """Eight bits for each key and value leave them 0.01 apart in the mean in this random model, which spans 10 nats;
    of float8, whose errors are up to a sixteenth of a number and not a 254th of the largest, seven times as far."""
    given = [(prompt, greedy(1, prompt_logprobs=0)) for prompt in prompts(6, seed=3, low=20, high=60)]
    plain, kept = (run(engine_on("float32", kv_cache_dtype=dtype), given) for dtype in ("auto", kept))
    differences = [line[token].logprob - near[token].logprob
                   for one, other in zip(plain, kept, strict=True)
                   for line, near in zip(one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True)
                   for token in line.keys() & near.keys()]
    assert 0 < np.abs(differences).mean() < bound


def test_compiled_programs_are_told_apart():
    described = {str(engine_on("float32", kv_cache_dtype=dtype)._runner.programs._describe(Key("layers", 8, 0)))
                 for dtype in ("auto", "int8", "fp8")}
    assert len(described) == 3


@pytest.mark.parametrize("name", [
    "int8", "int8_per_token_head", jnp.int8, np.dtype("int8"), "fp8", "fp8_e4m3", "fp8_per_token_head",
    jnp.float8_e4m3fn])
def test_every_name_of_them_gives_more_blocks_for_the_same_memory(name):
    plain, kept = (engine_on("float32", kv_cache_dtype=dtype) for dtype in ("auto", name))
    # 16 numbers of 4 bytes against 16 of 1 and a scale of 4.
    assert kept.config.num_blocks == plain.config.num_blocks * 64 // 20
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(kept._runner.cache)) <= 1 << 20
