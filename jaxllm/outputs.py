"""What a request gives back. Names follow vLLM's ``RequestOutput`` and ``CompletionOutput``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from jaxllm.sampling_params import LogprobsMode

if TYPE_CHECKING:
    import numpy as np

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclasses.dataclass(frozen=True, slots=True)
class Logprob:
    """The log-probability (natural log, float32) of one token at one position.

    logprob: under the distribution that ``CompletionOutput.logprobs_mode`` names; of prompt tokens the raw one.
    rank: 1 for the most likely token, counting the tokens strictly more likely before it.
    decoded_token: its text by itself, ``None`` without a tokenizer; a byte that is no character is shown as ``\\xNN``.
    raw_logprob: log-softmax of the model's logits, given beside a processed ``logprob``.
    """

    logprob: float
    rank: int
    decoded_token: str | None = None
    raw_logprob: float | None = None


TokenLogprobs = Mapping[int, Logprob]
"""Token id to ``Logprob`` for one position: the chosen token first, then the most likely ones in order, then those of
``logprob_token_ids``. Tokens that cannot occur (-inf) are left out."""


@dataclasses.dataclass(frozen=True, slots=True)
class OutputError:
    """Why a request failed: the exception's class name, its message, and the parameter at fault where one is."""

    type: str
    message: str
    parameter: str | None = None


@dataclasses.dataclass(slots=True)
class CompletionOutput:
    """One sample of a request.

    index: the sample's number, 0 to n - 1.
    text: what the tokens decode to, ended before the stop string.
    token_ids: every token generated, the one that completed a stop included.
    logprobs: for each token, see ``TokenLogprobs``; ``None`` unless asked for.
    logprobs_mode: "raw_logprobs" or "processed_logprobs", what ``logprobs`` are (``SamplingParams.logprobs_mode``).
    kept_mass: with processed ones, for each token the probability of what its filters (top-k, top-p, min-p) kept, at
        its temperature.
    cumulative_logprob: sum of the chosen tokens' log-probabilities, of that mode; ``None`` unless asked for.
    finish_reason: "stop" (end of sequence, stop id or stop string), "length", "abort", "error"; ``None`` while running.
    stop_reason: the stop string or stop token id that ended it; ``None`` for end of sequence.
    seed: the seed that, given as ``SamplingParams.seed``, repeats this sample (at the same index).
    """

    index: int
    text: str = ""
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    logprobs_mode: LogprobsMode | None = None
    kept_mass: list[float] | None = None
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    seed: int | None = None

    @property
    def finished(self) -> bool:
        """Whether no more tokens will come."""
        return self.finish_reason is not None


@dataclasses.dataclass(slots=True)
class RequestMetrics:
    """When things happened to a request, in seconds of ``time.perf_counter`` (``None`` until they do)."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """A request and what came of it, in the order of the prompts given.

    num_cached_tokens: prompt tokens whose keys and values were found in the prefix cache.
    error: set when this request failed; its ``outputs`` then hold what was generated before.
    hidden_state: float32 [D], of the prompt's last token after the final norm, where it is asked for
        (``jaxllm.pooling``).
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
    error: OutputError | None = None
    hidden_state: np.ndarray | None = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def finished(self) -> bool:
        """Whether every sample is done, or the request failed."""
        return self.error is not None or all(output.finished for output in self.outputs)
