"""What becomes of vLLM's arguments: each is there, or refused with what to do instead; none is dropped."""

from __future__ import annotations

import dataclasses
import inspect
import pickle

import numpy as np
import pytest

from jaxllm import LLM, BeamSearchParams, ParameterError, SamplingParams, StructuredOutputsParams
from jaxllm.arguments import (
    BEAM_SEARCH_ARGUMENTS,
    BEAM_SEARCH_FIELDS,
    CHAT_ARGUMENTS,
    ENGINE_ARGUMENTS,
    GENERATE_ARGUMENTS,
    PROMPT_KEYS,
    SAMPLING_FIELDS,
    STRUCTURED_FIELDS,
)
from jaxllm.arguments.table import ArgumentTable, honoured, refused
from jaxllm.engine.prompts import encode_prompt

FUNCTIONS = {
    "LLM": (ENGINE_ARGUMENTS, LLM.__init__), "generate": (GENERATE_ARGUMENTS, LLM.generate),
    "chat": (CHAT_ARGUMENTS, LLM.chat), "beam_search": (BEAM_SEARCH_ARGUMENTS, LLM.beam_search),
    "SamplingParams": (SAMPLING_FIELDS, SamplingParams), "BeamSearchParams": (BEAM_SEARCH_FIELDS, BeamSearchParams),
    "StructuredOutputsParams": (STRUCTURED_FIELDS, StructuredOutputsParams),
}
PAIRS = [(table, argument) for table, _ in FUNCTIONS.values() for argument in table.arguments]
REFUSED = [pytest.param(*pair, id=f"{pair[0].owner}-{pair[1].name}") for pair in PAIRS if not pair[1].honoured]


@pytest.mark.parametrize("owner", FUNCTIONS)
def test_an_argument_is_honoured_if_and_only_if_the_function_has_it(owner):
    table, function = FUNCTIONS[owner]
    parameters = inspect.signature(function).parameters
    has = {name for name, each in parameters.items() if each.kind is not each.VAR_KEYWORD} - {"self"}
    assert {argument.name for argument in table.arguments if argument.honoured} == has - set(table.own)
    assert set(table.own) <= has


@pytest.mark.parametrize(("table", "argument"), REFUSED)
def test_what_is_not_there_is_refused_with_its_replacement_and_accepted_at_its_default(table, argument):
    table.check({argument.name: argument.default})
    for value in (object(), "something else", np.zeros(2), [np.zeros(2)], {"a": np.zeros(2)}, float("nan"), b""):
        with pytest.raises(ParameterError) as caught:
            table.check({argument.name: value})
        assert caught.value.parameter == argument.name
        assert argument.note in str(caught.value)
    assert argument.note


def test_no_name_is_listed_twice():
    for table, _ in FUNCTIONS.values():
        names = [argument.name for argument in table.arguments]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(("name", "value"), [
    ("nnodes", 2),
    ("quantization_config", {"bits": 4}), ("speculative_model", "[ngram]"),
    ("enable_lora", True), ("trust_remote_code", True), ("enforce_eager", True), ("enable_chunked_prefill", False),
    ("distributed_executor_backend", "ray"), ("data_parallel_rank", 1), ("hf_overrides", {"rope_theta": 1.0}),
    ("cpu_offload_gb", 4), ("worker_cls", object), ("disable_sliding_window", True)])
def test_the_engine_refuses_before_it_looks_for_the_model(name, value):
    with pytest.raises(ParameterError) as caught:
        LLM("no/such/model", **{name: value})
    assert caught.value.parameter == name
    assert ENGINE_ARGUMENTS[name].note in str(caught.value)


@pytest.mark.parametrize(("name", "close"), [
    ("tensor_paralel_size", "tensor_parallel_size"), ("max_model_length", "max_model_len"),
    ("kv_cache_byte", "kv_cache_bytes"), ("sead", "seed")])
def test_a_misspelt_argument_is_refused_with_the_closest_name(name, close):
    with pytest.raises(ParameterError, match=rf"LLM has no such argument; did you mean {close}\?"):
        LLM("no/such/model", **{name: 1})


def test_a_name_like_no_other_is_refused_without_a_suggestion():
    with pytest.raises(ParameterError, match=r"LLM has no such argument$"):
        LLM("no/such/model", xyzzy=1)


@pytest.mark.parametrize(("name", "value", "instead"), [
    ("best_of", 3, "jaxllm.best_of"), ("use_beam_search", True, "LLM.beam_search"),
    ("guided_decoding", object(), "structured_outputs"), ("extra_args", {"a": 1}, "logits_processors"),
    ("output_kind", 2, "LLM.stream"), ("temprature", 0.5, "did you mean temperature"),
    ("kept_mass", 1, "no such argument")])
def test_sampling_params_refuses_what_it_does_not_have(name, value, instead):
    with pytest.raises(ParameterError, match=instead) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter == name


def test_sampling_params_passes_over_what_asks_for_nothing():
    params = SamplingParams(n=2, best_of=None, use_beam_search=False, skip_clone=True)
    assert params == SamplingParams(n=2)
    assert pickle.loads(pickle.dumps(params)) == dataclasses.replace(params) == params.replace() == params
    assert params.replace(best_of=1) == params


@pytest.mark.parametrize(("name", "value", "instead"), [
    ("backend", "xgrammar", "one grammar library"), ("disable_fallback", True, "one grammar library"),
    ("regexp", "a", "did you mean regex")])
def test_structured_outputs_params_refuses_what_it_does_not_have(name, value, instead):
    with pytest.raises(ParameterError, match=instead) as caught:
        StructuredOutputsParams(json={}, **{name: value})
    assert caught.value.parameter == name
    assert StructuredOutputsParams(json={}, backend="auto", disable_fallback=False) == StructuredOutputsParams(json={})


def test_sampling_params_keeps_the_signature_of_its_fields():
    assert list(inspect.signature(SamplingParams).parameters) == [f.name for f in dataclasses.fields(SamplingParams)]
    with pytest.raises(TypeError):
        SamplingParams(1)


@pytest.mark.parametrize("key", [each.name for each in PROMPT_KEYS.arguments if not each.honoured])
def test_keys_of_a_prompt_that_mean_nothing_here_are_refused(key):
    encode_prompt({"prompt_token_ids": [1], key: None}, None)
    with pytest.raises(ParameterError) as caught:
        encode_prompt({"prompt_token_ids": [1], key: object()}, None)
    assert caught.value.parameter == key


def test_a_flag_is_not_a_number():
    table = ArgumentTable("f", [*honoured(a=(1, "")), *refused("instead", b=1, c=False)])
    table.check({"b": 1, "c": False})
    for wrong in ({"b": True}, {"c": 0}, {"b": [1]}, {"a": 1}):
        with pytest.raises(ParameterError):
            table.check(wrong)
