"""What callers may give as prompts, conversations, sampling parameters and priorities, as lists of one form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxllm.checks import check_integer, one_for_each
from jaxllm.errors import ParameterError
from jaxllm.outputs import OutputError, RequestOutput
from jaxllm.sampling_params import SamplingParams

Params = SamplingParams | Sequence[SamplingParams] | None
"""One for all prompts, one for each, or the model's own defaults."""

_NO_LISTS = (bytes, bytearray, memoryview, set, frozenset)


class Unusable:
    """Stands for a prompt that could not be made, so that the error takes the prompt's place among the outputs."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def usable(make: Callable[[Any], Any], source: Any) -> Any:
    """The prompt that ``make`` gives, or an ``Unusable`` in its place."""
    try:
        return make(source)
    except ParameterError as error:
        return Unusable(error)


def prompt_list(prompts: Any) -> list[Any]:
    """The prompts as a list: one prompt is a list of one, and a flat list of integers is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not hasattr(prompts, "__iter__") or isinstance(prompts, _NO_LISTS) or getattr(prompts, "ndim", 1) == 0:
        raise ParameterError("prompts", prompts, "a prompt (a string, token ids or a mapping) or a list of prompts")
    if hasattr(prompts, "__array__"):  # also JAX's, whose rows are slow to take one by one
        prompts = np.asarray(prompts)
        return [prompts] if prompts.ndim == 1 and prompts.dtype.kind in "iu" else list(prompts)
    found = list(prompts)
    if found and all(_is_token_id(item) for item in found):
        return [found]
    return found


def conversation_list(messages: Any) -> list[Any]:
    """The conversations as a list: a list of messages is one conversation."""
    if isinstance(messages, str | bytes | Mapping) or not hasattr(messages, "__iter__"):
        raise ParameterError("messages", messages, "a list of messages, each a dict with 'role' and 'content', or a "
                             "list of such lists")
    found = list(messages)
    return [found] if found and isinstance(found[0], Mapping) else found


def params_list(params: Params, count: int, defaults: SamplingParams) -> list[SamplingParams]:
    """Sampling parameters for each of ``count`` prompts."""
    chosen = defaults if params is None else params
    return one_for_each("sampling_params", chosen, SamplingParams, count, "a SamplingParams, a list of them, or None")


def with_priorities(params: list[SamplingParams], priority: Any, policy: str) -> list[SamplingParams]:
    """The sampling parameters with one priority for each; ``None`` leaves them as they are."""
    if priority is None:
        return params
    if policy != "priority":
        raise ParameterError("priority", priority, "it needs LLM(scheduling_policy='priority')")
    if isinstance(priority, str | bytes | Mapping) or not hasattr(priority, "__iter__"):
        raise ParameterError("priority", priority, "a list of integers, one for each prompt")
    numbers = list(priority)
    if len(numbers) != len(params):
        raise ParameterError("priority", priority, f"one integer for each of the {len(params)} prompts")
    # Most prompts share their parameters, and a copy of them is checked anew.
    made: dict[tuple[int, int], SamplingParams] = {}
    found = []
    for each, number in zip(params, numbers, strict=True):
        check_integer("priority", number, None)
        key = id(each), int(number)
        if key not in made:
            made[key] = each.replace(priority=int(number))
        found.append(made[key])
    return found


def failed_output(prompt: Any, number: int, error: Exception) -> RequestOutput:
    """The output of a prompt that never became a request."""
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return RequestOutput(
        request_id=f"prompt-{number}",
        prompt=text if isinstance(text, str) else None,
        prompt_token_ids=[],
        outputs=[],
        error=OutputError(type(error).__name__, str(error), getattr(error, "parameter", None)),
    )


def _is_token_id(item: Any) -> bool:
    # Every array has __index__, whatever its shape.
    return hasattr(item, "__index__") and not isinstance(item, bool) and getattr(item, "ndim", 0) == 0
