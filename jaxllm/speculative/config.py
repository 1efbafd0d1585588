"""``SpeculativeConfig``: whether and how an engine guesses tokens ahead, and how users say it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from jaxllm.checks import check_integer
from jaxllm.errors import ParameterError

MAX_DRAFT_TOKENS = 256
MAX_LOOKUP = 32

_FORMS = 'None, "auto", or a mapping {"method": "ngram"}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class SpeculativeConfig:
    """Drafts by prompt lookup: a sequence is guessed to go on as it did after the last tokens' earlier occurrence.

    method: "ngram", the one there is. num_speculative_tokens: the most tokens guessed per sequence and step; how many
    are, depends on how often the guesses were right, and on what they cost. prompt_lookup_max, prompt_lookup_min: how
    many of the last tokens must occur earlier, at best and at least.
    """

    method: Literal["ngram"] = "ngram"
    num_speculative_tokens: int = 31
    prompt_lookup_max: int = 4
    prompt_lookup_min: int = 2

    def __post_init__(self) -> None:
        if self.method != "ngram":
            raise ParameterError("speculative_config['method']", self.method, "'ngram'; jaxllm has no draft models yet")
        for name, high in (("num_speculative_tokens", MAX_DRAFT_TOKENS), ("prompt_lookup_max", MAX_LOOKUP),
                           ("prompt_lookup_min", self.prompt_lookup_max)):
            object.__setattr__(self, name, check_integer(f"speculative_config[{name!r}]", getattr(self, name), 1, high))


def read_speculative_config(given: Any, *, on_host: bool) -> SpeculativeConfig | None:
    """The configuration that ``LLM(speculative_config=...)`` asks for; ``None`` where it is off.

    given: ``None`` or ``False`` (off), "auto" (on where a step of few tokens costs hardly more than one of a single
    token, which is known of CPUs), a mapping of the fields, or a ``SpeculativeConfig``. A bound that is not given goes
    along with the one that is.
    """
    if given is None or given is False:
        return None
    if isinstance(given, str) and given == "auto":
        return SpeculativeConfig() if on_host else None
    if isinstance(given, SpeculativeConfig):
        return given
    if not isinstance(given, Mapping):
        raise ParameterError("speculative_config", given, _FORMS)
    fields = {field.name for field in dataclasses.fields(SpeculativeConfig)}
    if given.get("method", "ngram") != "ngram" or (given.get("model") is not None and "method" not in given):
        raise ParameterError("speculative_config", given, '{"method": "ngram"}: jaxllm has no draft models yet')
    for name, value in given.items():
        if name not in fields and value is not None:
            raise ParameterError(f"speculative_config[{name!r}]", value,
                                 "not there in jaxllm; leave it out. There are " + ", ".join(sorted(fields)))
    chosen = {name: value for name, value in given.items() if name in fields and value is not None}
    for name, other in (("prompt_lookup_min", "prompt_lookup_max"), ("prompt_lookup_max", "prompt_lookup_min")):
        default = getattr(SpeculativeConfig, name)
        if name not in chosen and other in chosen:
            bound = check_integer(f"speculative_config[{other!r}]", chosen[other], 1, MAX_LOOKUP)
            chosen[name] = min(default, bound) if name.endswith("min") else max(default, bound)
    return SpeculativeConfig(**chosen)
