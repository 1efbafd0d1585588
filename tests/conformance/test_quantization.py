"""Engines on quantized weights: with ``quantization="gguf"`` outputs are, to the bit, those of decoded weights."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from kernels.native import needs_native
from support import bits, greedy, prompts, run
from tiny_folder import write_tiny_folder
from weights.checkpoint_files import VOCAB
from weights.quantized_llama import write_mixture

from jaxllm import LLM
from jaxllm.engine.build import build_engine
from jaxllm.engine.sizes import EngineSizes
from jaxllm.errors import ParameterError
from jaxllm.loading import load_weights, open_model
from jaxllm.runner.keys import Key
from jaxllm.weights import GGUFSource, SafetensorsSource, resolve

SIZES = {"max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": 8,
         "kv_cache_bytes": 8 << 20}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return GGUFSource(write_mixture(tmp_path_factory.mktemp("gguf") / "model.gguf"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return SafetensorsSource(write_tiny_folder(tmp_path_factory.mktemp("hf") / "tiny"))


@functools.cache
def engine_on(source, quantization, dtype="bfloat16", **sizes):
    """One for each choice; whoever changes its weights brings the old ones back."""
    opened = open_model(source, dtype, quantization=quantization)
    return build_engine(opened.model, lambda: load_weights(source, opened), EngineSizes(**{**SIZES, **sizes}))


@functools.cache
def requests(vocabulary=VOCAB):
    given = [[token % vocabulary for token in prompt] for prompt in prompts(6, seed=3, low=2, high=50)]
    return [(prompt, greedy(8, logprobs=3, prompt_logprobs=1, seed=5)) for prompt in given]


def answers(engine, vocabulary=VOCAB):
    outputs = run(engine, requests(vocabulary))
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [bits(output) for output in outputs]


@needs_native
def test_blocks_give_the_bits_of_decoded_weights(mixture):
    assert answers(engine_on(mixture, "gguf")) == answers(engine_on(mixture, None))


@needs_native
def test_the_packaged_model_gives_the_bits_of_decoded_weights():
    source, text = resolve("SmolLM2-135M-Instruct"), [(list(range(100, 140)), greedy(12, logprobs=5))]
    sizes = {"max_num_batched_tokens": 64, "kv_cache_bytes": 16 << 20}
    plain, kept = (bits(run(engine_on(source, name, **sizes), text)[0]) for name in (None, "gguf"))
    assert plain == kept


@pytest.mark.parametrize("quantization", ["gguf", "gguf-a8", "int8"])
@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=needs_native),
                                   pytest.param("float32", marks=pytest.mark.sweep)])
def test_a_request_gives_the_same_bits_alone_and_among_others(mixture, quantization, dtype):
    engine = engine_on(mixture, quantization, dtype, enable_prefix_caching=False)
    together = answers(engine)
    for request, expected in zip(requests(), together, strict=True):
        assert bits(run(engine, [request])[0]) == expected


def test_without_native_kernels_the_weights_mean_the_same(mixture):
    """In float32 both are XLA's dots over the same numbers; log-probabilities may differ by the order of sums."""
    plain, kept = (run(engine_on(mixture, name, "float32"), requests()) for name in (None, "gguf"))
    for one, other in zip(plain, kept, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert one.outputs[0].cumulative_logprob == pytest.approx(other.outputs[0].cumulative_logprob, abs=1e-3)


def mean_difference(plain, kept, given):
    """Of log-probabilities of prompts' tokens."""
    differences = [line[token].logprob - near[token].logprob
                   for one, other in zip(run(plain, given), run(kept, given), strict=True)
                   for line, near in zip(one.prompt_logprobs[1:], other.prompt_logprobs[1:], strict=True)
                   for token in line.keys() & near.keys()]
    return np.abs(differences).mean()


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=needs_native), "float32"])
def test_activations_of_8_bits_are_near_those_of_more(mixture, dtype):
    """Inputs of products are off by at most 1/254 of the largest of 32, as those of bfloat16 are of each:
    log-probabilities, which span 10 nats in this random model, are 0.2 apart at most in the mean."""
    given = [(prompt, greedy(1, prompt_logprobs=1)) for prompt, _ in requests()]
    exact, rounded = engine_on(mixture, None, "float32"), engine_on(mixture, "gguf-a8", dtype)
    assert 0 < mean_difference(exact, rounded, given) < 0.2


@needs_native
def test_the_packaged_model_means_the_same_with_activations_of_8_bits():
    """The text that a model goes on with is what it learnt, not noise: differences of log-probabilities are small."""
    source, prompt = resolve("SmolLM2-135M-Instruct"), list(range(100, 140))
    sizes = {"max_num_batched_tokens": 64, "kv_cache_bytes": 16 << 20}
    given = [(prompt, greedy(1, prompt_logprobs=1))]
    assert 0 < mean_difference(*(engine_on(source, name, **sizes) for name in ("gguf", "gguf-a8")), given) < 0.1


def test_int8_is_near_the_plain_weights(folder):
    """8 bits per row leave log-probabilities, which span 10 nats in this random model, 0.1 apart in the mean."""
    vocabulary = folder.config["vocab_size"]
    plain, kept = (engine_on(folder, name, "float32") for name in (None, "int8"))
    given = [(prompt, greedy(1, prompt_logprobs=1)) for prompt, _ in requests(vocabulary)]
    assert 0 < mean_difference(plain, kept, given) < 0.1


@pytest.mark.parametrize("quantization", ["gguf", "gguf-a8", "int8"])
def test_weights_come_back_from_sleep(mixture, quantization):
    engine = engine_on(mixture, quantization, "float32")
    before = answers(engine)
    engine.sleep(1)
    engine.wake_up()
    assert answers(engine) == before


@pytest.mark.parametrize("quantization", ["gguf", "gguf-a8", "int8"])
def test_an_engines_own_weights_can_be_given_back(mixture, quantization):
    engine = engine_on(mixture, quantization, "float32")
    before, params = answers(engine), engine.params
    engine.update_params(jax.tree.map(np.asarray, params))
    assert answers(engine) == before


def test_plain_weights_are_refused_where_blocks_are_kept(mixture):
    engine = engine_on(mixture, "gguf", "float32")
    before, plain = answers(engine), engine_on(mixture, None, "float32").params
    with pytest.raises(ParameterError, match=r"embedding.weight is kept as Q6_K, and plain numbers cannot take its "
                                             r"place.* quantization=None"):
        engine.update_params(plain)
    with pytest.raises(ParameterError, match="other quantized rows than this engine, which keeps Q6_K"):
        engine.update_params(engine_on(mixture, "int8", "float32").params)
    assert answers(engine) == before


def test_plain_weights_become_int8_where_that_is_kept(folder):
    vocabulary = folder.config["vocab_size"]
    engine = engine_on(folder, "int8", "float32")
    before = answers(engine, vocabulary)
    engine.update_params(jax.tree.map(lambda leaf: leaf * 0 + 0.5, engine_on(folder, None, "float32").params))
    assert answers(engine, vocabulary) != before
    engine.update_params(engine_on(folder, None, "float32").params)
    assert answers(engine, vocabulary) == before


def test_quantized_rows_are_refused_where_plain_weights_are_kept(folder):
    engine = engine_on(folder, None, "float32")
    with pytest.raises(ParameterError, match="other quantized rows than this engine, which keeps float32"):
        engine.update_params(engine_on(folder, "int8", "float32").params)


def test_compiled_programs_are_told_apart(mixture):
    described = {str(engine_on(mixture, name, "float32")._runner.programs._describe(Key("layers", 8, 0)))
                 for name in (None, "gguf", "gguf-a8", "int8")}
    assert len(described) == 4


def test_the_front_door_takes_and_refuses_it(folder):
    llm = LLM(folder.path, quantization="int8", load_format="dummy", **SIZES)
    assert llm.generate({"prompt_token_ids": [5, 6]}, greedy(3), use_tqdm=False)[0].error is None
    with pytest.raises(ParameterError, match="quantization='awq' is not allowed: None"):
        LLM("no/such/model", quantization="awq")
    for name in ("gguf", "gguf-a8"):
        with pytest.raises(ParameterError, match=r"only for \.gguf files"):
            LLM(folder.path, quantization=name)
