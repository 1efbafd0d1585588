"""The decoder against the float64 numpy reference, through the whole engine (prefill, chunks, decode, paged cache).

Tolerance: float32 rounding over two layers, 1e-4 absolute on log-probabilities of order 5."""

from __future__ import annotations

import numpy as np
import pytest
from models.reference import logprobs as reference_logprobs
from support import greedy, prompts, run, tiny_engine, tiny_model

from jaxllm.models.config import RopeConfig

VARIANTS = {
    "plain": {},
    "untied head": {"tie_word_embeddings": False},
    "biases": {"attention_bias": True, "attention_output_bias": True, "mlp_bias": True},
    "multi-query": {"num_kv_heads": 1},
    "multi-head": {"num_kv_heads": 6},
    "window shorter than the prompt": {"sliding_window": 11},
    "llama3 rope": {"rope": RopeConfig(theta=500.0, kind="llama3", factor=8.0, original_max_position=64)},
    "linear rope": {"rope": RopeConfig(kind="linear", factor=4.0)},
    "rope divisors": {"rope": RopeConfig(frequency_divisors=(1.0, 1.0, 2.0, 8.0))},
}
REPRESENTATIVES = ("plain", "window shorter than the prompt", "biases")


def _check(changes, budget):
    model, params = tiny_model(**changes)
    if any(changes.get(name) for name in ("attention_bias", "mlp_bias")):
        generator = np.random.default_rng(5)
        params = _with_random_biases(params, generator)
    engine = tiny_engine(changes=changes, max_num_batched_tokens=budget)
    engine.update_params(params)
    frequencies = model.config.rope.inverse_frequencies(model.config.head_dim)
    outputs = run(engine, [(prompt, greedy(12, logprobs=3, prompt_logprobs=2)) for prompt in prompts(5, seed=3)])
    for output in outputs:
        generated = output.outputs[0].token_ids
        tokens = output.prompt_token_ids + generated
        expected = reference_logprobs(model.config, params, tokens, frequencies)
        lines = output.prompt_logprobs[1:] + output.outputs[0].logprobs
        for position, line in enumerate(lines, start=1):
            for token, entry in line.items():
                assert entry.logprob == pytest.approx(expected[position - 1, token], abs=1e-4)
            best = max(line.items(), key=lambda item: item[1].logprob)[0]
            assert expected[position - 1, best] == pytest.approx(expected[position - 1].max(), abs=1e-4)


def _with_random_biases(tree, generator):
    return {
        name: _with_random_biases(value, generator) if isinstance(value, dict)
        else generator.normal(size=value.shape).astype(np.float32) if name == "bias" else value
        for name, value in tree.items()
    }


@pytest.mark.parametrize(
    "name", [name if name in REPRESENTATIVES else pytest.param(name, marks=pytest.mark.sweep) for name in VARIANTS])
def test_engine_matches_the_float64_reference(name):
    _check(VARIANTS[name], budget=64)


@pytest.mark.sweep
@pytest.mark.parametrize("name", VARIANTS)
def test_engine_matches_the_float64_reference_in_chunks_of_16(name):
    _check(VARIANTS[name], budget=16)
