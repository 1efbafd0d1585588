"""Lines in jaxllm's own form: what they ask for, and what is said of those that ask for what is not there."""

from __future__ import annotations

import pytest

from jaxllm import ParameterError, SamplingParams
from jaxllm.batch.request import CHAT_FIELDS, BatchRequest, parse_request
from jaxllm.structured import StructuredOutputsParams

DEFAULTS = SamplingParams(temperature=0.5, max_tokens=7, stop="x")
EXAMPLES = {
    "n": 2, "temperature": 0.25, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "presence_penalty": 0.5,
    "frequency_penalty": 0.5, "repetition_penalty": 1.5, "seed": 3, "stop": ["a", "b"], "stop_token_ids": [3],
    "bad_words": ["c"], "include_stop_str_in_output": True, "ignore_eos": True, "max_tokens": 9, "min_tokens": 1,
    "logprobs": 2, "prompt_logprobs": 1, "logprob_token_ids": [1], "logprobs_mode": "processed_logprobs",
    "detokenize": True, "skip_special_tokens": False, "spaces_between_special_tokens": False,
    "logit_bias": {"5": 1.5}, "allowed_token_ids": [1, 2], "banned_token_ids": [3],
    "logits_processors": {"mine": [1.0]}, "structured_outputs": {"json": {"type": "object"}},
    "truncate_prompt_tokens": 5, "priority": 1, "cache_salt": "s",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_sampling_parameter_goes_over_the_defaults(name):
    value = EXAMPLES[name]
    request = parse_request({"custom_id": "a", "prompt": "text", name: value}, DEFAULTS)
    wanted = StructuredOutputsParams(**value) if name == "structured_outputs" else value
    assert request == BatchRequest(DEFAULTS.replace(**{name: wanted}), "text")
    assert request.params != DEFAULTS or getattr(DEFAULTS, name) == value


def test_null_is_a_value_of_those_that_can_be_none():
    params = parse_request({"prompt": [1], "stop": None, "structured_outputs": None}, DEFAULTS).params
    assert params == DEFAULTS.replace(stop=None)


def test_what_vllm_has_and_jaxllm_has_not_is_passed_over_where_it_asks_for_nothing():
    assert parse_request({"prompt": [1], "best_of": 1, "output_kind": None}, DEFAULTS).params == DEFAULTS


def test_messages_take_what_chat_takes_beside_them():
    messages = [{"role": "user", "content": "hi"}]
    given = {"tools": [{"type": "function"}], "add_generation_prompt": False, "continue_final_message": True,
             "chat_template": "{{ messages }}", "chat_template_kwargs": {"enable_thinking": False}}
    assert set(given) == set(CHAT_FIELDS)
    request = parse_request({"messages": messages, "max_tokens": 3, **given}, DEFAULTS)
    variables = given.pop("chat_template_kwargs")
    assert request == BatchRequest(DEFAULTS.replace(max_tokens=3), None, messages, {**given, **variables})

    class Model:
        def chat_prompt(self, messages, **options):
            return messages, options

    assert request.encoded(Model()) == (messages, {**given, **variables})
    assert BatchRequest(DEFAULTS, "text").encoded(Model()) == "text"


@pytest.mark.parametrize(("fields", "parameter", "message"), [
    ({}, "prompt", "exactly one of prompt and messages"),
    ({"prompt": "a", "messages": []}, "prompt", "exactly one"),
    ({"prompt": {"prompt": "a"}}, "prompt", "a string or a list of token ids"),
    ({"messages": {"role": "user"}}, "messages", "a list of messages"),
    ({"prompt": "a", "tools": []}, "tools", "no such argument"),
    ({"prompt": "a", "max_token": 1}, "max_token", "did you mean max_tokens"),
    ({"prompt": "a", "best_of": 2}, "best_of", "jaxllm.best_of"),
    ({"prompt": "a", "guided_decoding": {"json": {}}}, "guided_decoding", "structured_outputs"),
    ({"prompt": "a", "top_p": 2}, "top_p", "<= 1"),
    ({"prompt": "a", "min_tokens": 8}, "min_tokens", "at most max_tokens, which is 7"),
    ({"prompt": "a", "structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs", "exactly one"),
    ({"prompt": "a", "structured_outputs": {"Json": {}}}, "structured_outputs.Json", "json_object"),
    ({"messages": [], "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "template variables"),
    ({"messages": [], "add_generation_prompt": "no"}, "add_generation_prompt", "True or False"),
    ({"messages": [], "continue_final_message": 1}, "continue_final_message", "True or False"),
    ({"messages": [], "chat_template_kwargs": [1]}, "chat_template_kwargs", "template variables"),
])
def test_what_cannot_be_had_is_refused_by_name(fields, parameter, message):
    with pytest.raises(ParameterError) as raised:
        parse_request(fields, DEFAULTS)
    assert raised.value.parameter == parameter
    assert message in str(raised.value)
