"""Requests without sampling parameters get the model's, and what may surprise is said once."""

from __future__ import annotations

import logging

from jaxllm.request_defaults import RequestDefaults
from jaxllm.sampling_params import SamplingParams


def test_the_models_parameters_are_taken_where_none_are_given():
    model, own = SamplingParams(temperature=0.3, max_tokens=5), SamplingParams(max_tokens=7)
    defaults = RequestDefaults(model, 100)
    assert defaults.of_prompts(None, 2) == [model, model]
    assert defaults.of_prompts([own, model], 2) == [own, model]


def test_outputs_without_a_limit_and_equal_samples_are_told_of_once(caplog):
    defaults = RequestDefaults(SamplingParams(temperature=0.0), 100)
    with caplog.at_level(logging.WARNING, "jaxllm"):
        for n in (1, 1, 2, 2):
            defaults.of_prompts(SamplingParams(temperature=0.0, n=n), 1)
        defaults.of_prompts(SamplingParams(temperature=1.0, n=2, max_tokens=3), 1)
    assert [record.getMessage().split(" ")[0] for record in caplog.records] == ["max_tokens", "greedy"]
    assert "100 tokens" in caplog.text
