"""Gemma 3 270M against Hugging Face transformers in float32 on the same dequantized weights: layers with and without a
window, which one of the prompts is longer than.

Oracle and tolerances: golden.py.
"""

from __future__ import annotations

import functools

import pytest
from conformance.golden import assert_golden, assert_leaves_only_at_near_ties, golden, requests
from support import bits, run

from jaxllm.engine.build import build_engine
from jaxllm.engine.sizes import EngineSizes
from jaxllm.generation_config import end_token_ids
from jaxllm.loading import load_weights, open_model, read_tokenizer
from jaxllm.weights import resolve

GOLDEN = golden("gemma3")
SOURCE = resolve("gemma-3-270m")
BOTH = [None, pytest.param("gguf", marks=pytest.mark.sweep)]


@functools.cache
def _opened(dtype, quantization):
    opened = open_model(SOURCE, dtype, quantization=quantization)
    return opened.model, load_weights(SOURCE, opened)


def _engine(dtype, quantization=None, **sizes):
    model, params = _opened(dtype, quantization)
    chosen = {"max_model_len": 768, "max_num_seqs": 8, "max_num_batched_tokens": 512, "block_size": 32,
              "kv_cache_bytes": 96 << 20, **sizes}
    return build_engine(model, lambda: params, EngineSizes(**chosen))


@functools.cache
def _together(quantization=None):
    return run(_engine("bfloat16", quantization), requests(GOLDEN))


def test_float32_gives_the_golden_tokens_and_logprobs():
    for item, output in zip(GOLDEN, run(_engine("float32"), requests(GOLDEN)), strict=True):
        assert len(output.outputs[0].token_ids) == len(item["output_ids"])
        assert_golden(item, output)


@pytest.mark.parametrize("quantization", BOTH)
def test_bfloat16_leaves_the_golden_tokens_only_at_near_ties(quantization):
    for item, output in zip(GOLDEN, _together(quantization), strict=True):
        assert len(output.outputs[0].token_ids) == len(item["output_ids"])
        assert_leaves_only_at_near_ties(item, output)


@pytest.mark.sweep
def test_weights_as_stored_give_the_bits_of_decoded_ones():
    assert [bits(output) for output in _together("gguf")] == [bits(output) for output in _together()]


@pytest.mark.parametrize("quantization", BOTH)
def test_bits_do_not_depend_on_company_chunks_blocks_or_prefix_hits(quantization):
    expected = [bits(output) for output in _together(quantization)]
    engine = _engine("bfloat16", quantization, max_num_batched_tokens=24, block_size=16, max_num_seqs=2)
    assert [bits(output) for output in run(engine, requests(GOLDEN)[::-1])] == expected[::-1]
    again = run(engine, requests(GOLDEN))
    assert [bits(output) for output in again] == expected
    assert any(output.num_cached_tokens for output in again)


def test_the_tokenizer_and_the_end_ids_come_from_the_file():
    tokenizer = read_tokenizer(SOURCE)
    for item in GOLDEN:
        if item["kind"] == "plain":
            assert tokenizer.encode(item["text"]) == item["prompt_ids"]
    assert {tokenizer.token_text(token) for token in end_token_ids(SOURCE, tokenizer)} == {"<eos>", "<end_of_turn>"}
