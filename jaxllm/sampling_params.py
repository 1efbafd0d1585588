"""``SamplingParams``: everything a request may ask of the sampler, validated once, never mutated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jaxllm.errors import ParameterError

MAX_SEED = 2**63 - 1
"""The largest seed: seeds are non-negative 63-bit integers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose the next tokens of one request. Names and meanings follow vLLM's ``SamplingParams``.

    n: samples per prompt, ``>= 1``. The prompt is computed once.
    temperature: ``>= 0``; 0 is greedy (ties go to the lowest id). Any positive value is honoured exactly.
    top_p: keep the smallest set of most likely tokens whose probability reaches it, in ``(0, 1]``; 1 keeps all.
    top_k: keep the k most likely tokens, ``>= 1``; 0 or -1 keeps all.
    min_p: keep tokens with at least this fraction of the most likely token's probability, in ``[0, 1]``.
    presence_penalty: subtracted from the logits of tokens that the output already holds, in ``[-2, 2]``.
    frequency_penalty: the same, times the token's count in the output, in ``[-2, 2]``.
    repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output, ``> 0``
        (Keskar et al. 2019, CTRL); 1 is off.
    seed: non-negative integer below 2**63. The noise is a pure function of (seed, sample index, position). ``None``
        draws one from the operating system; the output reports it.
    stop: strings that end the output; the text ends before the first that completes.
    stop_token_ids: token ids that end the output.
    include_stop_str_in_output: keep the stop string in the text.
    ignore_eos: do not stop at any of the model's end-of-sequence ids.
    max_tokens: the most tokens to generate, ``>= 1``; ``None`` means the room left in the context.
    min_tokens: the number of tokens before which neither end-of-sequence, stop ids nor stop strings end the output.
    logprobs: report log-probabilities (float32 log-softmax of the raw logits) of each chosen token and of the
        ``logprobs`` most likely ones; ``None`` reports none, 0 the chosen token's only.
    prompt_logprobs: the same for the prompt's tokens (the first has none).
    detokenize: produce text; ``False`` needs no tokenizer and excludes ``stop``.
    skip_special_tokens: leave special tokens out of the text.
    spaces_between_special_tokens: put spaces between special tokens that are shown.
    logit_bias: added to the logits, token id to finite number (ids may be decimal strings, as in JSON).
    allowed_token_ids: only these ids can be chosen.
    banned_token_ids: these ids can never be chosen.
    priority: with the ``priority`` policy, smaller runs first.
    cache_salt: requests share cached prefixes only with requests of the same salt.

    Raises ``ParameterError`` (a ``ValueError``) for anything outside these ranges.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] | None = None
    priority: int = 0
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        _integer("n", self.n, 1)
        _real("temperature", self.temperature, 0.0, None)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _integer("top_k", self.top_k, -1)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("repetition_penalty", self.repetition_penalty, 0.0, None, open_low=True)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1)
        _integer("min_tokens", self.min_tokens, 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0)
        _integer("priority", self.priority, None)
        for name in ("include_stop_str_in_output", "ignore_eos", "detokenize", "skip_special_tokens",
                     "spaces_between_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise ParameterError(name, getattr(self, name), "True or False")
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise ParameterError("cache_salt", self.cache_salt, "a string or None")
        self._set("stop", _stop_strings(self.stop))
        if self.stop and not self.detokenize:
            raise ParameterError("stop", self.stop, "stop strings need detokenize=True")
        for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids"):
            self._set(name, _token_ids(name, getattr(self, name)))
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ParameterError("allowed_token_ids", self.allowed_token_ids, "at least one id, or None")
        self._set("logit_bias", _logit_bias(self.logit_bias))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple, empty when none are set."""
        return tuple(self.stop or ())

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


def _integer(name: str, value: object, low: int | None, high: int | None = None) -> None:
    allowed = "an integer" + (f" >= {low}" if low is not None else "") + (f" and <= {high}" if high is not None else "")
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ParameterError(name, value, allowed)
    number = value.__index__()
    if (low is not None and number < low) or (high is not None and number > high):
        raise ParameterError(name, value, allowed)


def _real(name: str, value: object, low: float, high: float | None, *, open_low: bool = False) -> None:
    bounds = f"a finite number {'>' if open_low else '>='} {low}" + (f" and <= {high}" if high is not None else "")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(name, value, bounds) from None
    too_low = number <= low if open_low else number < low
    if isinstance(value, (bool, str)) or not math.isfinite(number) or too_low or (high is not None and number > high):
        raise ParameterError(name, value, bounds)


def _stop_strings(stop: object) -> tuple[str, ...] | None:
    if stop is None:
        return None
    strings = (stop,) if isinstance(stop, str) else stop
    if not isinstance(strings, Sequence) or not all(isinstance(s, str) and s for s in strings):
        raise ParameterError("stop", stop, "a non-empty string or a list of non-empty strings")
    return tuple(strings)


def _token_ids(name: str, ids: object) -> tuple[int, ...] | None:
    if ids is None:
        return None
    if isinstance(ids, (str, bytes, Mapping)) or not hasattr(ids, "__iter__"):
        raise ParameterError(name, ids, "a list of token ids")
    found = list(ids)
    for token in found:
        if isinstance(token, bool) or not hasattr(token, "__index__") or token.__index__() < 0:
            raise ParameterError(name, token, "token ids are integers >= 0")
    return tuple(token.__index__() for token in found)


def _logit_bias(bias: object) -> Mapping[int, float] | None:
    if bias is None:
        return None
    if not isinstance(bias, Mapping):
        raise ParameterError("logit_bias", bias, "a mapping from token id to number")
    result: dict[int, float] = {}
    for key, value in bias.items():
        if isinstance(key, str) and key.isdecimal():
            key = int(key)
        if isinstance(key, bool) or not hasattr(key, "__index__") or key.__index__() < 0:
            raise ParameterError("logit_bias", key, "keys are token ids: integers >= 0 or their decimal strings")
        _real(f"logit_bias[{key}]", value, -math.inf, None)
        result[key.__index__()] = float(value)
    return result
