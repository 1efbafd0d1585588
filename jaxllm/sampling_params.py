"""``SamplingParams``: everything a request may ask of the sampler, validated once, never mutated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from jaxllm.arguments import SAMPLING_FIELDS, understands
from jaxllm.checks import (
    check_bool,
    check_integer,
    check_real,
    checked_logit_bias,
    checked_processors,
    checked_strings,
    checked_token_ids,
)
from jaxllm.errors import ParameterError
from jaxllm.structured.params import StructuredOutputsParams

MAX_SEED = 2**63 - 1
"""The largest seed: seeds are non-negative 63-bit integers."""
MAX_SAMPLES = 16384
"""The largest ``n``."""
MAX_LOGPROB_TOKEN_IDS = 128
"""The most ``logprob_token_ids``."""
PROCESSOR_ARGUMENTS = 8
"""The most numbers that a request can pass to one logits processor."""

LogprobsMode = Literal["raw_logprobs", "processed_logprobs"]
LOGPROBS_MODES: tuple[LogprobsMode, ...] = ("raw_logprobs", "processed_logprobs")


@understands(SAMPLING_FIELDS)
@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose the next tokens of one request. Names and meanings follow vLLM's ``SamplingParams``.

    n: samples per prompt, 1 to 16384. The prompt is computed once.
    temperature: ``>= 0``; 0 is greedy (ties go to the lowest id). Any positive value is honoured exactly.
    top_p: keep the smallest set of most likely tokens whose probability reaches it, in ``(0, 1]``; 1 keeps all.
    top_k: keep the k most likely tokens, ``>= 1``; 0 or -1 keeps all.
    min_p: keep tokens with at least this fraction of the most likely token's probability, in ``[0, 1]``.
    presence_penalty: subtracted from the logits of tokens that the output already holds, in ``[-2, 2]``.
    frequency_penalty: the same, times the token's count in the output, in ``[-2, 2]``.
    repetition_penalty: divides positive and multiplies negative logits of tokens in prompt or output, ``> 0``
        (Keskar et al. 2019, CTRL); 1 is off.
    seed: non-negative integer below 2**63. The noise is a pure function of (seed, sample index, position). ``None``
        draws one from the operating system, or from the engine's seed; the output reports it.
    stop: strings that end the output; the text ends before the first that completes.
    stop_token_ids: token ids that end the output.
    bad_words: words that are never generated: the last token of any spelling that the tokenizer gives a word, alone
        or after a space, is masked where the tokens before it are there.
    include_stop_str_in_output: keep the stop string in the text.
    ignore_eos: do not stop at any of the model's end-of-sequence ids; excludes ``structured_outputs``.
    max_tokens: the most tokens to generate, ``>= 1``; ``None`` means the room left in the context.
    min_tokens: the number of tokens before which neither end-of-sequence, stop ids nor stop strings end the output;
        ``>= 0`` and at most ``max_tokens``.
    logprobs: report log-probabilities (float32) of each chosen token and of the ``logprobs`` most likely ones, at most
        the engine's ``max_logprobs``; 0 the chosen token's only, -1 of the whole vocabulary, ``None`` none.
    prompt_logprobs: the same for the prompt's tokens (the first has none); always of the raw logits.
    prompt_logprobs_start: the first position of the prompt that has them, ``>= 0``; those before are ``None``, and may
        come from the prefix cache.
    logprob_token_ids: report these ids' log-probabilities at each position, besides the chosen token's; at most 128.
    logprobs_mode: what ``logprobs`` are: "raw_logprobs", the log-softmax of the model's logits, or
        "processed_logprobs", that of the distribution drawn from: after processors, biases, penalties, masks,
        temperature (0 counts as 1), min-p, top-k and top-p. ``None`` takes the engine's. The output names it.
    detokenize: produce text; ``False`` needs no tokenizer and excludes ``stop``.
    skip_special_tokens: leave special tokens out of the text.
    spaces_between_special_tokens: put spaces between special tokens that are shown.
    logit_bias: added to the logits, token id to finite number (ids may be decimal strings, as in JSON).
    allowed_token_ids: only these ids can be chosen.
    banned_token_ids: these ids can never be chosen.
    logits_processors: which of the engine's processors (``LLM(logits_processors=...)``) change this request's logits: a
        name, a list of names, or a mapping from name to at most 8 numbers that the processor then sees.
    structured_outputs: a grammar that the text must follow (``StructuredOutputsParams``).
    truncate_prompt_tokens: keep only the last so many tokens of the prompt, ``>= 1``; -1 what leaves room for
        ``max_tokens`` (or one token) in the context.
    priority: smaller runs first; 0 unless the engine's ``scheduling_policy`` is "priority".
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
    bad_words: str | Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = None
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int = 0
    logprob_token_ids: Sequence[int] | None = None
    logprobs_mode: LogprobsMode | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    banned_token_ids: Sequence[int] | None = None
    logits_processors: str | Sequence[str] | Mapping[str, Sequence[float]] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    truncate_prompt_tokens: int | None = None
    priority: int = 0
    cache_salt: str | None = None

    reports_hidden_state: ClassVar[bool] = False
    """Whether the hidden state of the prompt's last token is reported (``jaxllm.pooling``)."""

    def __post_init__(self) -> None:
        self._check_sampling()
        self._check_lengths()
        self._check_reporting()
        self._check_constraints()
        self._integer("priority", None)
        if self.cache_salt is not None and not isinstance(self.cache_salt, str):
            raise ParameterError("cache_salt", self.cache_salt, "a string or None")

    def _check_sampling(self) -> None:
        self._integer("n", 1, MAX_SAMPLES)
        self._real("temperature", 0.0, None)
        self._real("top_p", 0.0, 1.0, open_low=True)
        self._integer("top_k", -1)
        self._real("min_p", 0.0, 1.0)
        self._real("presence_penalty", -2.0, 2.0)
        self._real("frequency_penalty", -2.0, 2.0)
        self._real("repetition_penalty", 0.0, None, open_low=True)
        if self.seed is not None:
            self._integer("seed", 0, MAX_SEED)

    def _check_lengths(self) -> None:
        if self.max_tokens is not None:
            self._integer("max_tokens", 1)
        self._integer("min_tokens", 0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", self.min_tokens, f"at most max_tokens, which is {self.max_tokens}")
        if self.truncate_prompt_tokens is not None:
            self._integer("truncate_prompt_tokens", -1)
            if self.truncate_prompt_tokens == 0:
                raise ParameterError("truncate_prompt_tokens", 0, "an integer >= 1, or -1")

    def _check_reporting(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._integer(name, -1)
        self._integer("prompt_logprobs_start", 0)
        if self.prompt_logprobs_start and self.prompt_logprobs is None:
            raise ParameterError("prompt_logprobs_start", self.prompt_logprobs_start, "0 without prompt_logprobs")
        self._set("logprob_token_ids", checked_token_ids("logprob_token_ids", self.logprob_token_ids))
        if self.logprob_token_ids is not None and not 1 <= len(self.logprob_token_ids) <= MAX_LOGPROB_TOKEN_IDS:
            allowed = f"1 to {MAX_LOGPROB_TOKEN_IDS} ids (logprobs=-1 reports all)"
            raise ParameterError("logprob_token_ids", self.logprob_token_ids, allowed)
        if self.logprobs_mode is not None and self.logprobs_mode not in LOGPROBS_MODES:
            raise ParameterError("logprobs_mode", self.logprobs_mode, " or ".join(map(repr, LOGPROBS_MODES)))
        for name in ("detokenize", "skip_special_tokens", "spaces_between_special_tokens"):
            check_bool(name, getattr(self, name))

    def _check_constraints(self) -> None:
        for name in ("include_stop_str_in_output", "ignore_eos"):
            check_bool(name, getattr(self, name))
        for name in ("stop", "bad_words"):
            self._set(name, checked_strings(name, getattr(self, name)))
        if self.stop and not self.detokenize:
            raise ParameterError("stop", self.stop, "stop strings need detokenize=True")
        for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids"):
            self._set(name, checked_token_ids(name, getattr(self, name)))
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise ParameterError("allowed_token_ids", self.allowed_token_ids, "at least one id, or None")
        self._set("logit_bias", checked_logit_bias(self.logit_bias))
        self._set("logits_processors", checked_processors(self.logits_processors, PROCESSOR_ARGUMENTS))
        if self.structured_outputs is None:
            return
        if not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise ParameterError("structured_outputs", self.structured_outputs, "a StructuredOutputsParams or None")
        if self.ignore_eos:
            raise ParameterError("ignore_eos", True, "False with structured_outputs: a complete text has to end")

    def _integer(self, name: str, low: int | None, high: int | None = None) -> None:
        self._set(name, check_integer(name, getattr(self, name), low, high))

    def _real(self, name: str, low: float, high: float | None, *, open_low: bool = False) -> None:
        self._set(name, check_real(name, getattr(self, name), low, high, open_low=open_low))

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

    @property
    def wants_logprobs(self) -> bool:
        """Whether log-probabilities of the output are reported."""
        return self.logprobs is not None or self.logprob_token_ids is not None

    def replace(self, **changes: Any) -> SamplingParams:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)

