"""Lines in the form of OpenAI's batch files."""

from __future__ import annotations

import pytest

from jaxllm import ParameterError, SamplingParams
from jaxllm.batch.openai import from_openai, is_openai
from jaxllm.batch.request import BatchRequest, parse_request
from jaxllm.structured import StructuredOutputsParams

DEFAULTS = SamplingParams(temperature=0.5, max_tokens=7)
MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def completion(**body):
    return {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "once", **body}}


def chat(**body):
    return {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": MESSAGES, **body}}


@pytest.mark.parametrize(("given", "prompt", "changes"), [
    ({}, "once", {}),
    ({"prompt": [1, 2]}, [1, 2], {}), ({"prompt": ["once"]}, "once", {}), ({"prompt": [[1, 2]]}, [1, 2], {}),
    ({"prompt": []}, [], {}),  # which the engine refuses
    ({"max_tokens": 3, "temperature": 0, "n": 2, "seed": 1, "stop": ["a"], "top_p": 0.5, "presence_penalty": 1,
      "frequency_penalty": 1, "logit_bias": {"5": -100}, "logprobs": 3}, "once",
     {"max_tokens": 3, "temperature": 0, "n": 2, "seed": 1, "stop": ["a"], "top_p": 0.5, "presence_penalty": 1,
      "frequency_penalty": 1, "logit_bias": {5: -100.0}, "logprobs": 3}),
    ({"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "stop_token_ids": [3], "ignore_eos": True}, "once",
     {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "stop_token_ids": [3], "ignore_eos": True}),
    ({"stream": False, "echo": False, "best_of": 1, "suffix": None, "user": "me", "temperature": None}, "once", {}),
])
def test_completions_are_prompts_with_their_sampling_parameters(given, prompt, changes):
    assert parse_request(completion(**given), DEFAULTS) == BatchRequest(DEFAULTS.replace(**changes), prompt)


@pytest.mark.parametrize(("given", "changes", "options"), [
    ({}, {}, {}),
    ({"max_tokens": 3}, {"max_tokens": 3}, {}), ({"max_completion_tokens": 3}, {"max_tokens": 3}, {}),
    ({"max_tokens": 3, "max_completion_tokens": 3}, {"max_tokens": 3}, {}),
    ({"logprobs": True}, {"logprobs": 0}, {}), ({"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}, {}),
    ({"logprobs": False}, {}, {}),
    ({"response_format": {"type": "text"}}, {}, {}),
    ({"response_format": {"type": "json_object"}},
     {"structured_outputs": StructuredOutputsParams(json_object=True)}, {}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
     {"structured_outputs": StructuredOutputsParams(json=SCHEMA)}, {}),
    ({"tools": [{"type": "function"}], "tool_choice": "auto", "parallel_tool_calls": True}, {},
     {"tools": [{"type": "function"}]}),
    ({"chat_template_kwargs": {"enable_thinking": False}}, {}, {"enable_thinking": False}),
    ({"stream": False, "modalities": ["text"], "service_tier": "default", "metadata": {"a": "b"}, "store": False},
     {}, {}),
])
def test_chats_are_messages_with_their_sampling_parameters(given, changes, options):
    assert parse_request(chat(**given), DEFAULTS) == BatchRequest(
        DEFAULTS.replace(**changes), messages=MESSAGES, chat_options=options)


@pytest.mark.parametrize(("line", "parameter", "message"), [
    ({"body": {}}, "method", "'POST'"),
    ({**chat(), "method": "GET"}, "method", "'POST'"),
    ({**chat(), "url": "/v1/embeddings"}, "url", "'/v1/completions' or '/v1/chat/completions'"),
    ({**chat(), "url": ["/v1/completions"]}, "url", "'/v1/completions'"),
    ({**chat(), "body": "x"}, "body", "an object"),
    ({**chat(), "max_tokens": 3}, "max_tokens", "custom_id, method, url, body"),
    (completion(prompt=["a", "b"]), "prompt", "a line of its own"),
    (completion(prompt=[[1], [2]]), "prompt", "a line of its own"),
    (completion(messages=MESSAGES), "messages", "only for '/v1/chat/completions'"),
    (completion(echo=True), "echo", "prompt_logprobs"),
    (completion(suffix="x"), "suffix", "as the model wants it"),
    (completion(best_of=3), "best_of", "jaxllm.best_of"),
    (completion(stream=True), "stream", "leave it out"),
    (completion(guided_json={}), "guided_json", "no such argument"),
    (chat(prompt="x"), "prompt", "only for '/v1/completions'"),
    (chat(max_tokens=3, max_completion_tokens=4), "max_completion_tokens", "which is 3"),
    (chat(top_logprobs=3), "top_logprobs", "logprobs=true"),
    (chat(logprobs=3), "logprobs", "true or false"),
    (chat(tool_choice="required"), "tool_choice", "structured_outputs"),
    (chat(functions=[]), "functions", "give tools"),
    (chat(reasoning_effort="low"), "reasoning_effort", "chat_template_kwargs"),
    (chat(response_format={"type": "grammar"}), "response_format", "json_schema"),
    (chat(response_format={"type": "json_schema", "json_schema": {"name": "x"}}), "response_format", "its schema"),
    (chat(response_format="json"), "response_format", "json_object"),
    (chat(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}), "response_format", "beside"),
    (chat(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}, ignore_eos=True),
     "ignore_eos", "structured_outputs"),
])
def test_what_jaxllm_has_not_is_refused_by_name(line, parameter, message):
    with pytest.raises(ParameterError) as raised:
        parse_request(line, DEFAULTS)
    assert raised.value.parameter == parameter
    assert message in str(raised.value)


def test_the_model_is_checked_where_a_name_is_given():
    assert "model" not in from_openai(chat(), None)
    assert "model" not in from_openai(chat(), "m")
    assert from_openai(completion(), "other")["prompt"] == "once"
    with pytest.raises(ParameterError, match="model='m' is not allowed: 'other', the model of this run"):
        parse_request(chat(), DEFAULTS, "other")


def test_either_of_its_keys_makes_a_line_one_of_openais():
    assert [is_openai({name: None}) for name in ("method", "url", "body", "prompt", "custom_id")] == [
        True, True, True, False, False]
