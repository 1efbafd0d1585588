"""``LLM`` as a user meets it, on a tiny random model in a Hugging Face folder."""

from __future__ import annotations

import gc
import json
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import bits, check_idle
from tiny_folder import write_tiny_folder

from jaxllm import (
    LLM,
    CapacityError,
    CheckpointError,
    ModelNotFoundError,
    ParameterError,
    SamplingParams,
    UnsupportedModelError,
)
from jaxllm.outputs import RequestOutput

SIZES = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 96, "block_size": 8}
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
TALK = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, **SIZES)


@pytest.fixture(autouse=True)
def _nothing_leaks(llm):
    yield
    check_idle(llm.engine)


@pytest.mark.parametrize("prompt", [
    "abc", [65, 66], {"prompt": "abc"}, {"prompt_token_ids": [65, 66]}, {"prompt": "shown", "prompt_token_ids": [3]}])
def test_a_single_prompt_of_any_form_gives_one_output(llm, prompt):
    (output,) = llm.generate(prompt, SHORT)
    assert output.error is None
    assert len(output.outputs[0].token_ids) == 8


def test_text_is_the_tokenizers_decode_of_the_ids(llm):
    for output in llm.generate(["a", "bb", "é"], SamplingParams(max_tokens=40, seed=1, ignore_eos=True)):
        assert output.outputs[0].text == llm.get_tokenizer().decode(output.outputs[0].token_ids)


@pytest.mark.parametrize("array", [np.array, jnp.array])
def test_arrays_of_token_ids_are_prompts(llm, array):
    (wanted,) = llm.generate([65, 66], SHORT)
    ids = array([65, 66])
    for prompts in (ids, [ids], [ids, ids], array([[65, 66], [65, 66]]), {"prompt_token_ids": ids}, list(ids)):
        for output in llm.generate(prompts, SHORT):
            assert output.prompt_token_ids == [65, 66]
            assert bits(output) == bits(wanted)


@pytest.mark.parametrize("prompts", [None, 5, b"abc", np.array(5)])
def test_what_is_no_prompt_at_all_is_refused(llm, prompts):
    with pytest.raises(ParameterError, match="prompts"):
        llm.generate(prompts, SHORT)


@pytest.mark.parametrize("params", [{"temperature": 0}, [SHORT], [SHORT, None, SHORT], "greedy"])
def test_sampling_params_must_be_one_for_all_or_one_each(llm, params):
    with pytest.raises(ParameterError, match="sampling_params"):
        llm.generate(["a", "b", "c"], params)


def test_chat_renders_the_template(llm):
    (output,) = llm.chat(TALK, SHORT)
    assert output.prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert output.prompt_token_ids[0] == llm.tokenizer.backend.token_to_id("<|im_start|>")
    assert len(llm.chat([TALK, TALK], SHORT)) == 2


@pytest.mark.parametrize("messages", [None, 5, "hello", TALK[0]])
def test_what_is_no_conversation_at_all_is_refused(llm, messages):
    with pytest.raises(ParameterError, match="messages"):
        llm.chat(messages, SHORT)


@pytest.mark.parametrize("variables", [5, {5: 5}, {"messages": []}, {"tools": []}, {"tokenize": True}, {"self": 1}])
def test_template_variables_that_cannot_be_are_refused(llm, variables):
    with pytest.raises(ParameterError, match="chat_template_kwargs"):
        llm.chat(TALK, SHORT, chat_template_kwargs=variables)


def test_n_samples_differ_when_sampled_and_agree_when_greedy(llm, caplog):
    params = SamplingParams(n=4, temperature=1.0, seed=7, max_tokens=8, ignore_eos=True)
    first, second = llm.generate("abc", params)[0], llm.generate("abc", params)[0]
    assert len({tuple(sample.token_ids) for sample in first.outputs}) == 4
    assert bits(first) == bits(second)
    with caplog.at_level(logging.WARNING, "jaxllm"):
        for _ in range(2):
            samples = llm.generate("abc", SHORT.replace(n=3))[0].outputs
    assert len({tuple(sample.token_ids) for sample in samples}) == 1
    assert caplog.text.count("equal samples") == 1


def test_a_reported_seed_repeats_the_sample(llm):
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)
    sample = llm.generate("abc", params)[0].outputs[0]
    again = llm.generate("abc", params.replace(seed=sample.seed))[0].outputs[0]
    assert again.token_ids == sample.token_ids


def test_prompt_logprobs_are_the_same_with_and_without_a_cached_prefix(llm):
    llm.reset_prefix_cache()
    text = "a prompt of several blocks of eight tokens"
    params = SHORT.replace(prompt_logprobs=1)
    cold = llm.generate(text, params)[0]
    warm = llm.generate(text, SHORT)[0]
    again = llm.generate(text, params)[0]
    assert warm.num_cached_tokens > 0
    assert bits(again) == bits(cold)
    assert len(cold.prompt_logprobs) == len(cold.prompt_token_ids)
    assert cold.prompt_logprobs[0] is None
    assert all(token in line for token, line in zip(cold.prompt_token_ids[1:], cold.prompt_logprobs[1:], strict=True))


def test_parameters_are_never_changed(llm):
    params = SamplingParams(temperature=0.7, stop=["zz"], max_tokens=4, logit_bias={"5": 1})
    before = repr(params)
    llm.generate(["a", "b"], params)
    assert repr(params) == before


def test_the_bar_is_quiet_when_not_a_terminal(llm, capfd):
    llm.generate(["a", "b"], SHORT, use_tqdm=True)
    captured = capfd.readouterr()
    assert captured.err == captured.out == ""


def test_a_second_engine_after_the_first_is_gone_finds_the_memory_free(folder):
    def live():
        gc.collect()
        return sum(array.nbytes for array in jax.live_arrays())

    before = live()
    for _ in range(2):
        other = LLM(folder, **SIZES)
        other.generate("abc", SHORT)
        del other
        assert live() <= before + 1024


def test_models_that_cannot_be_served_are_refused_by_name(tmp_path):
    with pytest.raises(ModelNotFoundError, match="no such file"):
        LLM(tmp_path / "missing")
    with pytest.raises(UnsupportedModelError, match=r"NoSuchForCausalLM.*nearest that are: .*ForCausalLM"):
        LLM(write_tiny_folder(tmp_path / "a", architectures=["NoSuchForCausalLM"]))
    folder = write_tiny_folder(tmp_path / "b")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(CheckpointError, match=r"model\.layers\.2"):
        LLM(folder)


@pytest.mark.parametrize(("options", "name"), [
    ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype"), ({"kv_cache_dtype": "fp8_e5m2"}, "'int8' or 'fp8'"),
    ({"kv_cache_bytes": 10**15}, "kv_cache_bytes"), ({"kv_cache_bytes": 1}, "kv_cache_bytes"),
    ({"gpu_memory_utilization": 5}, "gpu_memory_utilization"), ({"gpu_memory_utilization": "x"}, "gpu_memory"),
    ({"dtype": "int8"}, "dtype"), ({"block_size": 0}, "block_size"), ({"max_num_seqs": "8"}, "max_num_seqs"),
    ({"max_num_batched_tokens": 15}, "max_num_batched_tokens"), ({"scheduling_policy": "x"}, "scheduling_policy"),
    ({"max_model_len": 257}, "max_model_len"), ({"max_logprobs": -2}, "max_logprobs"), ({"tokenizer": 5}, "tokenizer"),
])
def test_sizes_that_cannot_be_are_refused_by_name(folder, options, name):
    with pytest.raises((ParameterError, CapacityError), match=name):
        LLM(folder, **{**SIZES, **options})


@pytest.mark.parametrize("model", [None, 5, b"x", ["x"], ""])
def test_what_names_no_model_is_refused(model):
    with pytest.raises(ParameterError, match="model"):
        LLM(model)


def test_a_config_that_asks_for_billions_of_layers_is_refused_at_once(tmp_path):
    with pytest.raises(CheckpointError, match="1000000000 layers"):
        LLM(_with_config(write_tiny_folder(tmp_path / "tiny"), num_hidden_layers=10**9))


@pytest.mark.parametrize("ids", [-1, 9999, [258, -1, 9999]])
def test_end_ids_that_the_vocabulary_lacks_are_ignored(tmp_path, ids):
    llm = LLM(_with_config(write_tiny_folder(tmp_path / "tiny"), eos_token_id=ids), **SIZES)
    assert llm.engine.eos_token_ids == {258}
    (output,) = llm.generate("a", SamplingParams(max_tokens=3, min_tokens=3))
    assert output.error is None


@pytest.mark.parametrize("ids", ["x", True, 1.5, {"a": 1}, [None]])
def test_end_ids_that_are_none_are_refused(tmp_path, ids):
    with pytest.raises(CheckpointError, match="eos_token_id"):
        LLM(_with_config(write_tiny_folder(tmp_path / "tiny"), eos_token_id=ids), **SIZES)


def _with_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_generation_config_gives_the_defaults_and_further_ends(tmp_path):
    folder = write_tiny_folder(tmp_path / "tiny")
    (folder / "generation_config.json").write_text(json.dumps(
        {"temperature": 0.3, "top_k": 5, "eos_token_id": [258, 65], "max_new_tokens": 9}))
    llm = LLM(folder, **SIZES)
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.3, top_k=5, max_tokens=9)
    assert llm.engine.eos_token_ids == {258, 65}
    output: RequestOutput = llm.generate("a", SamplingParams(
        temperature=0.0, max_tokens=6, min_tokens=5, allowed_token_ids=[65, 258, 70]))[0]
    assert output.outputs[0].token_ids[:5] == [70] * 5
