"""How an engine's sizes are chosen, and what is said when they cannot be."""

from __future__ import annotations

import dataclasses
import logging

import jax.numpy as jnp
import pytest
from support import TINY

from jaxllm.config import CPU_POOL_FLOOR, EngineConfig, plan_memory
from jaxllm.errors import CapacityError, ParameterError
from jaxllm.kv_cache import kv_spec
from jaxllm.models.config import DecoderConfig

MODEL = DecoderConfig(**TINY)
SPEC = kv_spec(MODEL, jnp.float32)
BLOCK = SPEC.block_bytes(16)
GOOD = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64, "block_size": 16, "num_blocks": 9,
        "vocab_size": 100}


def _plan(**changes):
    return plan_memory(**{
        "model": MODEL, "spec": SPEC, "block_size": 16, "max_num_seqs": 4, "max_model_len": None,
        "kv_cache_bytes": None, "free_bytes": 1 << 34, "weight_bytes": 1 << 20, "on_host": True, **changes})


def test_the_host_pool_is_what_full_requests_need():
    assert _plan() == (512, 4 * 32 + 1)


def test_the_host_pool_stays_within_a_quarter_of_the_free_memory():
    for blocks in (40, 64, 100):
        assert _plan(free_bytes=4 * blocks * BLOCK)[1] in range(blocks * 2 // 3, blocks + 1)


def test_a_little_more_free_memory_changes_no_shape():
    plans = {_plan(free_bytes=(1 << 23) + noise) for noise in range(0, 1 << 20, 1 << 14)}
    assert len(plans) == 1


def test_the_host_pool_is_capped_unless_the_weights_are_larger():
    many = {"max_num_seqs": 1 << 20, "free_bytes": 1 << 40}
    assert _plan(**many)[1] == CPU_POOL_FLOOR // BLOCK
    assert _plan(**many, weight_bytes=2 * CPU_POOL_FLOOR)[1] == 2 * CPU_POOL_FLOOR // BLOCK


def test_an_accelerator_gives_what_is_free():
    assert _plan(on_host=False, free_bytes=50 * BLOCK)[1] == 50


def test_a_length_that_was_not_asked_for_shrinks_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "jaxllm"):
        assert _plan(kv_cache_bytes=11 * BLOCK) == (160, 11)
    assert "160" in caplog.text


@pytest.mark.parametrize(("changes", "fits", "knob"), [
    ({"kv_cache_bytes": 11 * BLOCK}, 160, "kv_cache_bytes"),
    ({"free_bytes": 4 * 12 * BLOCK}, 176, "kv_cache_bytes"),
    ({"free_bytes": 11 * BLOCK, "on_host": False}, 160, "gpu_memory_utilization"),
])
def test_a_length_that_does_not_fit_names_the_largest_that_does_and_what_to_change(changes, fits, knob):
    with pytest.raises(CapacityError, match=rf"largest max_model_len that fits is {fits}.*{knob}"):
        _plan(max_model_len=fits + 1, **changes)
    assert _plan(max_model_len=fits, **changes)[0] == fits


@pytest.mark.parametrize("length", [1, 513, 0, -5, 2.0, True, "64"])
def test_a_length_outside_the_models_is_refused(length):
    with pytest.raises(ParameterError, match="max_model_len"):
        _plan(max_model_len=length)
    with pytest.raises(ParameterError, match="max_model_len=513 is not allowed: at most 512, the model's context"):
        _plan(max_model_len=513)


@pytest.mark.parametrize(("name", "value"), [
    ("max_num_seqs", 0), ("max_num_batched_tokens", 15), ("max_model_len", 1), ("block_size", 0), ("max_logprobs", -2),
    ("scheduling_policy", "lifo"), ("logprobs_mode", "raw_logits"), ("seed", -1), ("seed", 2**63),
    ("max_num_seqs", 10**9), ("max_num_batched_tokens", 10**9), ("block_size", 10**9),
    ("enable_prefix_caching", 1), ("max_num_seqs", 2.5), ("block_size", True),
])
def test_engine_config_names_what_is_wrong(name, value):
    with pytest.raises(ParameterError) as caught:
        EngineConfig(**{**GOOD, name: value})
    assert caught.value.parameter == name


def test_capacity_leaves_out_the_null_block():
    config = EngineConfig(**GOOD)
    assert config.token_capacity == 128
    assert dataclasses.replace(config, max_model_len=65).blocks_per_sequence == 5
