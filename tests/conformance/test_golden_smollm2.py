"""SmolLM2-135M-Instruct against Hugging Face transformers in float32 on the same dequantized weights.

Oracle and tolerances: golden.py.
"""

from __future__ import annotations

import functools

import pytest
from conformance.golden import assert_golden, assert_leaves_only_at_near_ties, golden, requests
from kernels.native import needs_native, using
from support import bits, run

from jaxllm.engine.build import build_engine
from jaxllm.engine.sizes import EngineSizes
from jaxllm.loading import load_weights, open_model
from jaxllm.weights import resolve
from pallas_kernels import cpu

GOLDEN = golden("smollm2")
BOTH = ("bfloat16", "float32")


@functools.cache
def _opened(dtype):
    source = resolve("SmolLM2-135M-Instruct")
    opened = open_model(source, dtype)
    return opened.model, load_weights(source, opened)


def _engine(dtype, **sizes):
    model, params = _opened(dtype)
    chosen = {"max_model_len": 1088, "max_num_seqs": 16, "max_num_batched_tokens": 512, "block_size": 32,
              "kv_cache_bytes": 192 << 20, **sizes}
    return build_engine(model, lambda: params, EngineSizes(**chosen))


@functools.cache
def _together(dtype):
    return run(_engine(dtype), requests(GOLDEN))


def test_float32_begins_with_the_golden_tokens_and_logprobs():
    some = GOLDEN[:2] + GOLDEN[5:8]
    for item, output in zip(some, run(_engine("float32"), requests(some, most=12)), strict=True):
        assert len(output.outputs[0].token_ids) == 12
        assert_golden(item, output)


@pytest.mark.sweep
def test_float32_gives_the_golden_tokens_and_logprobs():
    for item, output in zip(GOLDEN, _together("float32"), strict=True):
        assert len(output.outputs[0].token_ids) == len(item["output_ids"])
        assert_golden(item, output)


def test_bfloat16_leaves_the_golden_tokens_only_at_near_ties():
    for item, output in zip(GOLDEN, _together("bfloat16"), strict=True):
        assert len(output.outputs[0].token_ids) == len(item["output_ids"])
        assert_leaves_only_at_near_ties(item, output)


@needs_native
def test_every_instruction_set_without_tiles_gives_the_same_text_and_logprobs():
    items, found = GOLDEN[:2] + GOLDEN[5:8], []
    for name in cpu.instruction_sets():
        if name != "amx_bf16":
            with using(name):
                found.append(run(_engine("bfloat16"), requests(items, most=12)))
    for item, *outputs in zip(items, *found, strict=True):
        assert_leaves_only_at_near_ties(item, outputs[0])
        assert all(bits(output) == bits(outputs[0]) for output in outputs)


def _equal_to_together(dtype, outputs, items=GOLDEN):
    expected = {item["text"]: bits(output) for item, output in zip(GOLDEN, _together(dtype), strict=True)}
    for item, output in zip(items, outputs, strict=True):
        assert bits(output) == expected[item["text"]], f"{dtype}: {item['text'][:60]!r} depends on how it was run"


SHORT = [item for item in GOLDEN if len(item["prompt_ids"]) < 100]


@pytest.mark.parametrize("dtype", [BOTH[0], pytest.param(BOTH[1], marks=pytest.mark.sweep)])
def test_bits_are_equal_in_a_small_budget_with_preemption_and_prefix_hits(dtype):
    # The longest request goes first and takes 34 of 44 blocks of 32 tokens: the others push each other out of the rest.
    blocks, items = 44, GOLDEN[::-1]
    model, _ = _opened(dtype)
    pool = (blocks + 1) * 32 * 2 * 30 * 3 * 64 * model.dtype.itemsize
    # Token by token: with guesses in between, some end before they are in the way of others.
    engine = _engine(dtype, max_num_batched_tokens=128, kv_cache_bytes=pool, speculative_config=None)
    _equal_to_together(dtype, run(engine, requests(items)), items)
    assert engine.stats().num_preemptions > 0
    again = run(engine, requests(items))
    _equal_to_together(dtype, again, items)
    assert any(output.num_cached_tokens for output in again)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("budget", [16, 24, 100, 1024])
def test_bits_do_not_depend_on_the_token_budget(dtype, budget):
    items = SHORT if budget < 100 else GOLDEN
    _equal_to_together(dtype, run(_engine(dtype, max_num_batched_tokens=budget), requests(items)), items)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", BOTH)
def test_bits_are_equal_one_at_a_time(dtype):
    engine = _engine(dtype, enable_prefix_caching=False)
    outputs = [run(engine, [request])[0] for request in requests(GOLDEN)]
    _equal_to_together(dtype, outputs)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", BOTH)
@pytest.mark.parametrize("block_size", [16, 64])
def test_bits_do_not_depend_on_the_block_size(dtype, block_size):
    _equal_to_together(dtype, run(_engine(dtype, block_size=block_size), requests(GOLDEN)))
