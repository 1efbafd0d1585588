"""``SamplingParams`` refuses what is outside its ranges, by name, and keeps what is inside."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.errors import ParameterError
from jaxllm.sampling_params import MAX_SEED, SamplingParams
from jaxllm.structured import StructuredOutputsParams

BAD = {
    "n": [0, -1, 1.5, True, "2", None, 10**9],
    "temperature": [-0.1, math.nan, math.inf, "0.5", None, True, 10**400],
    "top_p": [0, 1.01, -0.5, math.nan],
    "top_k": [-2, 1.5, None],
    "min_p": [-0.1, 1.1],
    "presence_penalty": [-2.1, 2.1, math.nan],
    "frequency_penalty": [-2.1, 2.1],
    "repetition_penalty": [0, -1, math.inf],
    "seed": [-1, MAX_SEED + 1, 1.0, "7"],
    "stop": ["", [""], ["a", ""], 5, [5], {"a": 1}, "\ud800"],
    "stop_token_ids": [[-1], [1.5], "12", [True], 5],
    "max_tokens": [0, -1, 2.5],
    "min_tokens": [-1, 1.5],
    "logprobs": [-2, 1.5, True],
    "prompt_logprobs": [-2],
    "logprob_token_ids": [[], [-1], 5, list(range(129))],
    "logprobs_mode": ["raw", "raw_logits", True],
    "bad_words": ["", [""], 5, [5], ["a", "\udfff"]],
    "logits_processors": [5, [5], {"a": "b"}, {"a": [math.nan]}, {"a": range(9)}, {1, 2}],
    "structured_outputs": [{"json": {}}, "a+"],
    "truncate_prompt_tokens": [0, -2, 1.5],
    "prompt_logprobs_start": [-1, 1.5, True, 3],
    "logit_bias": [{-1: 1}, {"a": 1}, {1: math.nan}, {1: math.inf}, [1], {1.5: 1}, {1: 10**400}],
    "allowed_token_ids": [[], [-1]],
    "banned_token_ids": [[-1], "ab"],
    "priority": [1.5, None],
    "cache_salt": [5, b"x"],
    "detokenize": [1, None],
    "skip_special_tokens": ["yes"],
    "include_stop_str_in_output": [0],
    "ignore_eos": ["no"],
    "spaces_between_special_tokens": [2],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.parameter.split("[")[0] == name


def test_every_parameter_has_a_refusal_tested():
    assert set(BAD) == {field.name for field in dataclasses.fields(SamplingParams)}


def test_combinations_that_contradict_are_refused():
    with pytest.raises(ParameterError, match="min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)
    with pytest.raises(ParameterError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)
    with pytest.raises(ParameterError, match="ignore_eos"):
        SamplingParams(structured_outputs=StructuredOutputsParams(regex="a"), ignore_eos=True)


def test_unknown_parameters_are_refused():
    for name in ("best_of", "temperatur", "xyzzy"):
        with pytest.raises(ParameterError, match=name):
            SamplingParams(**{name: 3})


def test_values_are_normalized_and_frozen():
    params = SamplingParams(stop="x", stop_token_ids=np.array([3, 4]), logit_bias={"5": 1, 6: -2})
    assert params.stop_strings == ("x",)
    assert params.stop_token_ids == (3, 4)
    assert params.logit_bias == {5: 1.0, 6: -2.0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2


@given(st.floats(1e-30, 100), st.floats(1e-6, 1), st.integers(-1, 10**6), st.integers(0, MAX_SEED))
def test_values_inside_the_ranges_are_kept_exactly(temperature, top_p, top_k, seed):
    params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    assert (params.temperature, params.top_p, params.top_k, params.seed) == (temperature, top_p, top_k, seed)
    assert params.replace() == params


INTEGERS = {"n": 2, "top_k": 5, "seed": 7, "max_tokens": 9, "min_tokens": 2, "logprobs": 1, "prompt_logprobs": 1,
            "prompt_logprobs_start": 1, "truncate_prompt_tokens": 3, "priority": 4}
REALS = {"temperature": 0.5, "top_p": 0.5, "min_p": 0.25, "presence_penalty": 0.5, "frequency_penalty": 0.5,
         "repetition_penalty": 1.5}


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint64, np.array, jnp.int32])
def test_integers_of_any_width_are_kept_as_pythons(kind):
    params = SamplingParams(**{name: kind(value) for name, value in INTEGERS.items()})
    assert params == SamplingParams(**INTEGERS)
    assert {type(getattr(params, name)) for name in INTEGERS} == {int}
    assert type(SamplingParams(truncate_prompt_tokens=np.int8(-1)).truncate_prompt_tokens) is int


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.array, jnp.bfloat16])
def test_reals_of_any_width_are_kept_as_pythons(kind):
    params = SamplingParams(**{name: kind(value) for name, value in REALS.items()},
                            logits_processors={"one": kind(0.5), "two": [kind(0.5), 2], "three": np.array([0.5, 2])})
    assert params == SamplingParams(**REALS, logits_processors={"one": 0.5, "two": [0.5, 2], "three": [0.5, 2]})
    assert {type(getattr(params, name)) for name in REALS} == {float}


def test_arguments_of_processors_fit_float32():
    for argument in (1e39, -1e300):
        with pytest.raises(ParameterError, match="logits_processors"):
            SamplingParams(logits_processors={"scale": argument})


def test_mappings_within_cannot_be_changed_and_are_copied_and_hashed_with_the_rest():
    given = {5: 1.0}
    params = SamplingParams(logit_bias=given, logits_processors={"a": [1]})
    given[5] = 2.0
    assert params.logit_bias == {5: 1.0}
    with pytest.raises(TypeError):
        params.logit_bias[5] = 2.0
    for copied in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):
        assert copied == params
        assert hash(copied) == hash(params)
