"""Each argument of ``LLM`` that vLLM has too does what it says."""

from __future__ import annotations

import functools
import json
import logging
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from support import bits
from tiny_folder import CHAT_TEMPLATE, write_tiny_folder

from jaxllm import LLM, CapacityError, CheckpointError, ParameterError, SamplingParams
from jaxllm.engine.seeds import derived_seed
from jaxllm.engine.sizes import choose_config
from jaxllm.engine.stats_log import logger as stats_logger
from jaxllm.first_step import FirstStep
from jaxllm.tokenization import from_folder

SIZES = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 96, "block_size": 8}
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
FREE = SamplingParams(max_tokens=8, ignore_eos=True)
TALK = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def plain(folder):
    return LLM(folder, **SIZES)


def made(folder, **options):
    return LLM(folder, **{**SIZES, **options})


@pytest.fixture
def configured(folder, monkeypatch):
    """Makes an ``LLM`` whose engine has a configuration and nothing else: no program is compiled for it."""
    def build(model, load, sizes, *, tokenizer, eos_token_ids, **_):
        config, _ = choose_config(model, sizes, tokenizer)
        return SimpleNamespace(config=config, model=model, eos_token_ids=eos_token_ids)

    monkeypatch.setattr("jaxllm.llm.build_engine", build)
    return functools.partial(made, folder)


def test_with_a_seed_unseeded_requests_repeat_in_the_order_of_arrival(folder):
    runs = [made(folder, seed=7).generate(["a", "b", "a"], FREE) for _ in range(2)]
    assert [bits(output) for output in runs[0]] == [bits(output) for output in runs[1]]
    assert [output.outputs[0].seed for output in runs[0]] == [derived_seed(7, number) for number in range(3)]
    assert runs[0][0].outputs[0].token_ids != runs[0][2].outputs[0].token_ids


@pytest.mark.parametrize(("given", "length"), [
    ("96", 96), (np.int64(96), 96), ("0.1k", 100), (None, 256), ("auto", 256), (-1, 256)])
def test_lengths_may_be_text(configured, given, length):
    assert configured(max_model_len=given).engine.config.max_model_len == length


def test_bytes_of_the_cache_may_be_text_and_have_vllms_name(configured):
    blocks = {configured(**{name: value}).engine.config.num_blocks
              for name in ("kv_cache_bytes", "kv_cache_memory_bytes") for value in (2**20, "1M", "1MiB")}
    assert len(blocks) == 1
    with pytest.raises(ParameterError, match="kv_cache_memory_bytes"):
        configured(kv_cache_bytes=2**20, kv_cache_memory_bytes=2**20)
    with pytest.raises(ParameterError, match="kv_cache_memory_bytes"):
        configured(kv_cache_memory_bytes="x")


@pytest.mark.parametrize("given", ["1M", 2**-10, "0.0009765625"])
def test_swap_space_is_a_number_of_gibibytes_or_has_a_unit(configured, given):
    config = configured(swap_space=given).engine.config
    assert config.num_swap_blocks == configured(swap_space="1024K").engine.config.num_swap_blocks > 0
    assert configured().engine.config.num_swap_blocks == configured(swap_space=0).engine.config.num_swap_blocks == 0
    with pytest.raises(CapacityError, match="swap_space"):
        configured(swap_space=10**9)


@pytest.mark.parametrize("name", ["max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len"])
def test_sizes_out_of_all_proportion_are_refused_by_name(configured, name):
    with pytest.raises(ParameterError) as caught:
        configured(**{name: 10**9})
    assert caught.value.parameter == name


@pytest.mark.parametrize(("dtype", "name"), [("half", "float16"), ("float16", "float16"), ("bfloat16", "bfloat16"),
                                             ("float", "float32"), ("float32", "float32"), (jnp.bfloat16, "bfloat16")])
def test_dtypes_have_vllms_names(configured, dtype, name):
    assert configured(dtype=dtype).engine.model.dtype.name == name


def test_sizes_may_be_numpys(configured):
    sizes = {name: np.int64(SIZES[name]) for name in ("max_num_seqs", "max_num_batched_tokens", "block_size")}
    assert configured(**sizes).engine.config == configured().engine.config


@pytest.mark.parametrize(("given", "on"), [(None, True), (True, True), (False, False)])
def test_the_prefix_cache_is_on_unless_turned_off(configured, given, on):
    assert configured(enable_prefix_caching=given).engine.config.enable_prefix_caching is on


def test_without_a_tokenizer_ids_go_in_and_come_out(folder, plain):
    llm = made(folder, skip_tokenizer_init=True)
    (output,) = llm.generate([65, 66], SHORT)
    (wanted,) = plain.generate([65, 66], SHORT)
    assert output.outputs[0].token_ids == wanted.outputs[0].token_ids
    assert output.outputs[0].text == ""
    assert llm.engine.eos_token_ids == {258}
    (failed,) = llm.generate("text", SHORT)
    assert failed.error.parameter == "prompt"
    (failed,) = llm.chat(TALK, SHORT)
    assert failed.error.parameter == "skip_tokenizer_init"
    with pytest.raises(ParameterError, match="skip_tokenizer_init"):
        llm.get_tokenizer()


def test_a_tokenizer_may_come_from_a_folder_without_a_model_or_be_one(tmp_path, folder, configured):
    (tmp_path / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    for chosen in (tmp_path, str(tmp_path), folder, from_folder(folder)):
        assert configured(tokenizer=chosen).get_tokenizer().encode("abc") == from_folder(folder).encode("abc")


@pytest.mark.parametrize(("options", "name"), [
    ({"tokenizer": 5}, "tokenizer"), ({"tokenizer": ""}, "tokenizer"),
    ({"tokenizer_revision": "x"}, "tokenizer_revision"), ({"tokenizer_revision": 5}, "tokenizer_revision"),
    ({"skip_tokenizer_init": 1}, "skip_tokenizer_init"),
    ({"skip_tokenizer_init": True, "tokenizer": "x"}, "tokenizer"),
    ({"skip_tokenizer_init": True, "tokenizer_revision": "main"}, "tokenizer_revision"),
    ({"disable_log_stats": None}, "disable_log_stats"), ({"first_step": 5}, "first_step"), ({"seed": -1}, "seed"),
    ({"chat_template": 5}, "chat_template"), ({"chat_template": "/no/such.jinja"}, "chat_template"),
    ({"load_format": "pt"}, "load_format"),
    ({"load_format": []}, "load_format"), ({"load_format": "gguf"}, "load_format"),
    ({"logprobs_mode": "raw_logits"}, "logprobs_mode"),
    ({"logits_processors": 5}, "logits_processors"), ({"generation_config": "/none"}, "generation_config"),
    ({"generation_config": 5}, "generation_config"), ({"enable_prefix_caching": 5}, "enable_prefix_caching"),
    ({"override_generation_config": {"temp": 1}}, "override_generation_config"),
    ({"override_generation_config": {"top_p": 2}}, "override_generation_config"),
    ({"override_generation_config": 5}, "override_generation_config"), ({"max_logprobs": -2}, "max_logprobs"),
    ({"swap_space": "x"}, "swap_space"), ({"swap_space": -1}, "swap_space")])
def test_values_that_cannot_be_are_refused_by_name(configured, options, name):
    with pytest.raises(ParameterError) as caught:
        configured(**options)
    assert caught.value.parameter == name


def test_modes_and_limits_of_logprobs_reach_the_engine(configured):
    config = configured(max_logprobs=-1, logprobs_mode="processed_logprobs").engine.config
    assert (config.max_logprobs, config.logprobs_mode) == (-1, "processed_logprobs")


@pytest.mark.parametrize(("step", "name"), [({"num_tokens": 0}, "num_tokens"), ({"num_tokens": "5"}, "num_tokens"),
                                            ({"params": {}}, "params")])
def test_a_first_step_that_cannot_be_is_refused(step, name):
    with pytest.raises(ParameterError, match=name):
        FirstStep(**step)


def test_a_chat_template_may_be_text_or_a_file(tmp_path, configured):
    text = "{{ messages[0]['content'] }}!"
    (tmp_path / "template.jinja").write_text(text)
    for given in (text, tmp_path / "template.jinja", str(tmp_path / "template.jinja")):
        llm = configured(chat_template=given)
        assert llm.chat_prompt(TALK)["prompt"] == "Hi!"
        assert llm.chat_prompt(TALK, chat_template=CHAT_TEMPLATE) == configured().chat_prompt(TALK)


def test_dummy_weights_are_random_and_need_no_checkpoint(tmp_path, folder, plain):
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / name).write_text((folder / name).read_text())
    with pytest.raises(CheckpointError, match="no weights"):
        made(tmp_path)
    outputs = [LLM(tmp_path, load_format="dummy", **SIZES).generate("a", SHORT)[0] for _ in range(2)]
    assert bits(outputs[0]) == bits(outputs[1])
    assert outputs[0].outputs[0].token_ids != plain.generate("a", SHORT)[0].outputs[0].token_ids


def test_a_format_of_weights_that_is_there_may_be_named(configured):
    assert configured(load_format="safetensors").engine


def test_generation_configs_give_the_defaults(tmp_path, configured):
    model = write_tiny_folder(tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "eos_token_id": [258, 65]}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_k": 7, "do_sample": True, "eos_token_id": 66}))
    cases = [({}, SamplingParams(temperature=0.3), {258, 65}),
             ({"generation_config": "vllm"}, SamplingParams(), {258, 65}),
             ({"generation_config": tmp_path}, SamplingParams(top_k=7), {258, 65, 66}),
             ({"override_generation_config": {"top_p": 0.5, "max_new_tokens": 4}},
              SamplingParams(temperature=0.3, top_p=0.5, max_tokens=4), {258, 65}),
             ({"override_generation_config": {"do_sample": False}}, SamplingParams(temperature=0.0), {258, 65})]
    for options, wanted, ends in cases:
        llm = made(model, **options)
        assert llm.get_default_sampling_params() == wanted
        assert llm.engine.eos_token_ids == ends


def test_figures_are_logged_if_asked_for(folder, caplog):
    with caplog.at_level(logging.INFO, stats_logger.name):
        made(folder).generate("a", SHORT)
        assert not caplog.records
        made(folder, disable_log_stats=False).generate("a", SHORT)
    (record,) = caplog.records
    assert "generated tokens/s; 0 running, 0 waiting" in record.getMessage()


def test_priorities_of_a_call_take_the_place_of_the_requests(folder, plain):
    llm = made(folder, scheduling_policy="priority", max_num_seqs=1)
    outputs = llm.generate(["a", "b", "c"], SHORT, priority=[3, 2, 1])
    finished = sorted(outputs, key=lambda output: output.metrics.finished_time)
    assert [output.prompt for output in finished] == ["c", "b", "a"]
    assert llm.chat([TALK], SHORT, priority=[1])[0].error is None
    for wrong in ([1], "abc", 5, [1, 2, 3.5], [1, 2, None]):
        with pytest.raises(ParameterError, match="priority"):
            llm.generate(["a", "b", "c"], SHORT, priority=wrong)
    with pytest.raises(ParameterError, match="scheduling_policy"):
        plain.generate(["a"], SHORT, priority=[1])


def test_a_callable_makes_the_bar(plain):
    class Bar:
        def __init__(self, **arguments):
            self.arguments, self.count = arguments, 0
            bars.append(self)

        def set_postfix_str(self, text, refresh):
            pass

        def update(self, count):
            self.count += count

        def close(self):
            self.closed = True

    bars = []
    plain.generate(["a", "b"], SHORT.replace(n=2), use_tqdm=functools.partial(Bar, leave=False))
    plain.chat(TALK, SHORT, use_tqdm=Bar)
    assert [(bar.arguments["total"], bar.count, bar.closed) for bar in bars] == [(4, 4, True), (1, 1, True)]
    assert bars[0].arguments["leave"] is False


@pytest.mark.parametrize("call", ["generate", "chat"])
def test_arguments_of_a_call_that_are_not_there_are_refused(plain, call):
    prompts = {"generate": ["a"], "chat": [TALK]}[call]
    method = getattr(plain, call)
    assert method(prompts, SHORT, lora_request=None)[0].error is None
    for name in ("lora_request", "tokenization_kwargs", "mm_processor_kwargs", "raise_on_errors"):
        with pytest.raises(ParameterError) as caught:
            method(prompts, SHORT, **{name: object()})
        assert caught.value.parameter == name
