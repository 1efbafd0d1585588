"""Checks of sampling parameters against the vocabulary."""

from __future__ import annotations

import pytest

from jaxllm.errors import ParameterError
from jaxllm.sampling import validate_token_ids
from jaxllm.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {100: 1.0}),
        ("logit_bias", {"100": 1.0}),
        ("allowed_token_ids", [3, 100]),
        ("banned_token_ids", [100]),
        ("stop_token_ids", [2**40]),
    ],
)
def test_ids_outside_the_vocabulary_are_named(name, value):
    with pytest.raises(ParameterError, match=rf"{name}=\d+ is not allowed: token ids of this model are 0 to 99"):
        validate_token_ids(SamplingParams(**{name: value}), 100)


def test_the_last_id_is_inside():
    params = SamplingParams(
        logit_bias={"99": 1.0}, allowed_token_ids=[99], banned_token_ids=[98], stop_token_ids=[99], logprobs=20
    )
    validate_token_ids(params, 100)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_more_logprobs_than_the_engine_reports_are_refused(name):
    validate_token_ids(SamplingParams(**{name: 5}), 100, max_logprobs=5)
    with pytest.raises(ParameterError, match=f"{name}=6 is not allowed: 0 to 5, the engine's max_logprobs"):
        validate_token_ids(SamplingParams(**{name: 6}), 100, max_logprobs=5)


def test_banning_everything_allowed_is_refused():
    with pytest.raises(ParameterError, match="banned_token_ids"):
        validate_token_ids(SamplingParams(allowed_token_ids=[3, 4], banned_token_ids=[4, 3, 5]), 100)
