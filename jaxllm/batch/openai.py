"""Lines of OpenAI's batch files, as vLLM's ``run_batch`` takes them, translated to jaxllm's own form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxllm.arguments import ArgumentTable
from jaxllm.arguments.table import refused
from jaxllm.errors import ParameterError

_TOP = ("custom_id", "method", "url", "body")
_LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")
"""What a client notes for itself or for its provider; it asks for nothing."""
_BOTH = (
    *refused("a result is written once, when it is finished; leave it out", stream=False, stream_options=None),
    *refused("it is a matter of the provider; leave it out", "default", service_tier="auto"),
    *refused("the results file keeps everything; leave it out", store=False),
)
_COMPLETION = ArgumentTable("a completion's body", [
    *_BOTH,
    *refused("the text is that of the output alone; prompt_logprobs scores the prompt", echo=False),
    *refused("there is no text after the output; write it into the prompt as the model wants it", "", suffix=None),
])
_CHAT = ArgumentTable("a chat completion's body", [
    *_BOTH,
    *refused("the model decides; constrain its text with structured_outputs", tool_choice="auto"),
    *refused("the model decides; leave it out", parallel_tool_calls=True),
    *refused("give tools", functions=None, function_call=None),
    *refused("text only", modalities=["text"], audio=None),
    *refused("give it to the chat template, in chat_template_kwargs", reasoning_effort=None, verbosity=None),
    *refused("leave it out", prediction=None, web_search_options=None),
])


def is_openai(fields: Mapping[str, Any]) -> bool:
    """Whether a line is in OpenAI's form."""
    return not fields.keys().isdisjoint({"method", "url", "body"})


def from_openai(fields: Mapping[str, Any], model_name: str | None) -> dict[str, Any]:
    """The same line in jaxllm's form; ``ParameterError`` for what jaxllm does not have."""
    for name, value in fields.items():
        if name not in _TOP:
            raise ParameterError(name, value, f"beside a body, only {', '.join(_TOP)}")
    if fields.get("method") != "POST":
        raise ParameterError("method", fields.get("method"), "'POST'")
    url, body = fields.get("url"), fields.get("body")
    translate = _URLS.get(url) if isinstance(url, str) else None
    if translate is None:
        raise ParameterError("url", url, " or ".join(map(repr, _URLS)))
    if not isinstance(body, dict):
        raise ParameterError("body", body, "an object")
    given = {name: value for name, value in body.items() if value is not None and name not in _LABELS}
    model = given.pop("model", None)
    if model is not None and model_name is not None and model != model_name:
        raise ParameterError("model", model, f"{model_name!r}, the model of this run")
    return translate(given)


def _without(table: ArgumentTable, given: dict[str, Any]) -> dict[str, Any]:
    """The fields without those of the table, of which any that matters raises."""
    table.check({name: value for name, value in given.items() if name in table})
    return {name: value for name, value in given.items() if name not in table}


def _completion(given: dict[str, Any]) -> dict[str, Any]:
    given = _with_format(_without(_COMPLETION, given))
    prompt = given.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise ParameterError("prompt", prompt, "one prompt: each has a line of its own")
        given["prompt"] = prompt[0]
    if "messages" in given:
        raise ParameterError("messages", given["messages"], "only for '/v1/chat/completions'")
    return given


def _chat(given: dict[str, Any]) -> dict[str, Any]:
    given = _with_format(_without(_CHAT, given))
    if "prompt" in given:
        raise ParameterError("prompt", given["prompt"], "only for '/v1/completions'")
    most = given.pop("max_completion_tokens", None)
    if most is not None and given.setdefault("max_tokens", most) != most:
        raise ParameterError("max_completion_tokens", most, f"the same as max_tokens, which is {given['max_tokens']!r}")
    wanted, count = given.pop("logprobs", False), given.pop("top_logprobs", None)
    if not isinstance(wanted, bool):
        raise ParameterError("logprobs", wanted, "true or false; top_logprobs is a number")
    if count is not None and not wanted:
        raise ParameterError("top_logprobs", count, "only with logprobs=true")
    return {**given, "logprobs": count or 0} if wanted else given


_URLS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "/v1/completions": _completion, "/v1/chat/completions": _chat}


def _with_format(given: dict[str, Any]) -> dict[str, Any]:
    """``response_format`` as structured outputs."""
    wanted = given.pop("response_format", None)
    if wanted is None or wanted == {"type": "text"}:
        return given
    if "structured_outputs" in given:
        raise ParameterError("response_format", wanted, "not beside structured_outputs")
    if wanted == {"type": "json_object"}:
        return {**given, "structured_outputs": {"json_object": True}}
    described = wanted.get("json_schema") if isinstance(wanted, dict) and wanted.get("type") == "json_schema" else None
    if not isinstance(described, dict) or not isinstance(described.get("schema"), dict):
        raise ParameterError("response_format", wanted, "of type text, json_object, or json_schema with its schema")
    return {**given, "structured_outputs": {"json": described["schema"]}}
