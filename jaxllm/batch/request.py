"""``BatchRequest``: what a line asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxllm.arguments import SAMPLING_FIELDS
from jaxllm.batch.openai import from_openai, is_openai
from jaxllm.chat_prompts import check_template_variables
from jaxllm.checks import check_bool
from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams
from jaxllm.structured.params import StructuredOutputsParams

if TYPE_CHECKING:
    from jaxllm.llm import LLM

CHAT_FIELDS = ("tools", "add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs")
"""What a line may say beside its messages, as arguments of ``LLM.chat``."""
_SAMPLING = frozenset(field.name for field in dataclasses.fields(SamplingParams))
_STRUCTURED = frozenset(field.name for field in dataclasses.fields(StructuredOutputsParams))


@dataclasses.dataclass(frozen=True)
class BatchRequest:
    """Sampling parameters, and a prompt (text or token ids) or messages with what ``LLM.chat`` takes beside them."""

    params: SamplingParams
    prompt: Any = None
    messages: Any = None
    chat_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def encoded(self, llm: LLM) -> Any:
        """The prompt as the engine takes it."""
        return self.prompt if self.messages is None else llm.chat_prompt(self.messages, **self.chat_options)


def parse_request(fields: Mapping[str, Any], defaults: SamplingParams, model_name: str | None = None) -> BatchRequest:
    """What a line asks for, its sampling parameters over the defaults; ``ParameterError`` names what cannot be had.

    model_name: the only model that a line in OpenAI's form may name; ``None`` allows any.
    """
    rest = dict(from_openai(fields, model_name) if is_openai(fields) else fields)
    rest.pop("custom_id", None)
    if ("prompt" in rest) == ("messages" in rest):
        raise ParameterError("prompt", rest.get("prompt"), "exactly one of prompt and messages")
    if "messages" not in rest:
        prompt = rest.pop("prompt")
        if not isinstance(prompt, str | list):
            raise ParameterError("prompt", prompt, "a string or a list of token ids")
        return BatchRequest(_params(rest, defaults), prompt)
    messages = rest.pop("messages")
    if not isinstance(messages, list):
        raise ParameterError("messages", messages, "a list of messages, each an object with role and content")
    options = {name: rest.pop(name) for name in CHAT_FIELDS if name in rest}
    for name in ("add_generation_prompt", "continue_final_message"):
        check_bool(name, options.get(name, False))
    variables = options.pop("chat_template_kwargs", None)
    check_template_variables(variables)
    return BatchRequest(_params(rest, defaults), messages=messages, chat_options={**options, **(variables or {})})


def _params(given: dict[str, Any], defaults: SamplingParams) -> SamplingParams:
    SAMPLING_FIELDS.check({name: value for name, value in given.items() if name not in _SAMPLING})
    fields = {name: value for name, value in given.items() if name in _SAMPLING}
    if fields.get("structured_outputs") is not None:
        fields["structured_outputs"] = _structured(fields["structured_outputs"])
    return defaults.replace(**fields)


def _structured(value: Any) -> StructuredOutputsParams:
    allowed = f"an object with fields of {', '.join(sorted(_STRUCTURED))}"
    if not isinstance(value, dict):
        raise ParameterError("structured_outputs", value, allowed)
    for name in value:
        if name not in _STRUCTURED:
            raise ParameterError(f"structured_outputs.{name}", value[name], allowed)
    return StructuredOutputsParams(**value)
