"""``BeamSearchParams`` and what ``LLM.beam_search`` gives back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, cast

from jaxllm.arguments.beam_search import BEAM_SEARCH_FIELDS
from jaxllm.arguments.table import understands
from jaxllm.checks import check_bool, check_integer, check_real, checked_strings, checked_token_ids, one_for_each
from jaxllm.errors import ParameterError
from jaxllm.outputs import CompletionOutput, RequestOutput

EarlyStopping = bool | Literal["never"]

_FLOAT32_RANGE = 127 * math.log(2)


@understands(BEAM_SEARCH_FIELDS)
@dataclasses.dataclass(frozen=True)
class BeamSearchParams:
    """How to search for the most likely outputs of one prompt. Results equal those of Hugging Face's ``generate``.

    beam_width: beams that run at once, ``>= 1`` and at most the engine's ``max_num_seqs``; 1 is greedy search.
    max_tokens: the most tokens to generate, ``>= 1``.
    ignore_eos: do not stop at any of the model's end-of-sequence ids.
    temperature: 0.0 or 1.0, which are the same: beams are ranked by the log-softmax of the raw logits.
    length_penalty: a hypothesis' score is its sum of log-probabilities divided by ``length ** length_penalty``, where
        the length is that of the output without the prompt; so above 0 favours long outputs and below 0 short ones.
    early_stopping: when to stop looking once ``beam_width`` hypotheses are finished. ``True``: at once. ``False``: when
        the best running beam, scored at its present length, is no better than the worst of them. ``"never"``: when it
        could not become better, whatever the length that ``length_penalty`` favours.
    stop: strings that finish a hypothesis; its text ends before the first that completes. The prompt's text does not
        count.
    stop_token_ids: token ids that finish a hypothesis.
    include_stop_str_in_output: keep the stop string in the text.
    num_return_sequences: hypotheses to return, at most ``beam_width``; ``None`` returns all.

    Raises ``ParameterError`` (a ``ValueError``) for anything outside these ranges.
    """

    beam_width: int
    max_tokens: int
    _: dataclasses.KW_ONLY
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    num_return_sequences: int | None = None

    def __post_init__(self) -> None:
        self._set("beam_width", check_integer("beam_width", self.beam_width, 1))
        self._set("max_tokens", check_integer("max_tokens", self.max_tokens, 1))
        check_bool("ignore_eos", self.ignore_eos)
        check_bool("include_stop_str_in_output", self.include_stop_str_in_output)
        self._set("temperature", check_real("temperature", self.temperature, 0.0, None))
        if self.temperature not in (0.0, 1.0):
            raise ParameterError("temperature", self.temperature, "0.0 or 1.0, which are the same in a beam search: it "
                                 "ranks by the log-softmax of the raw logits")
        self._set("length_penalty", check_real("length_penalty", self.length_penalty, -math.inf, None))
        if abs(self.length_penalty) * math.log(self.max_tokens) > _FLOAT32_RANGE:
            raise ParameterError("length_penalty", self.length_penalty,
                                 f"so small that max_tokens ** length_penalty, with max_tokens={self.max_tokens}, is "
                                 "within the range of float32")
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise ParameterError("early_stopping", self.early_stopping, "True, False or 'never'")
        if self.num_return_sequences is not None:
            number = check_integer("num_return_sequences", self.num_return_sequences, 1, self.beam_width)
            self._set("num_return_sequences", number)
        self._set("stop", checked_strings("stop", self.stop))
        self._set("stop_token_ids", checked_token_ids("stop_token_ids", self.stop_token_ids))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """``stop`` as a tuple, empty when none are set."""
        return tuple(self.stop or ())

    @property
    def n(self) -> int:
        """The sequences that the request takes, as ``SamplingParams.n``."""
        return self.beam_width

    @property
    def num_returned(self) -> int:
        """``num_return_sequences``, or ``beam_width`` where that is ``None``."""
        return self.num_return_sequences or self.beam_width

    def replace(self, **changes: Any) -> BeamSearchParams:
        """A copy with some fields changed, validated again."""
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(slots=True)
class BeamSearchSequence(CompletionOutput):
    """One hypothesis: a ``CompletionOutput`` with a score.

    index: its place among the hypotheses, 0 for the best. token_ids: the output's, without the prompt.
    logprobs: of each token, its own alone. cumulative_logprob: their sum, in float32.
    finish_reason: "stop" or "length"; "abort" or "error" for a beam that was running when the request was ended;
        ``None`` while it runs.
    score: what hypotheses are ranked by: ``cumulative_logprob / len(token_ids) ** length_penalty``.
    """

    score: float = 0.0

    @property
    def cum_logprob(self) -> float:
        """vLLM's name for ``cumulative_logprob``."""
        return self.cumulative_logprob or 0.0


@dataclasses.dataclass(slots=True)
class BeamSearchOutput(RequestOutput):
    """A prompt and the hypotheses found for it.

    outputs: ``BeamSearchSequence``s, best first, at most ``num_return_sequences``; before the end also running beams.
    ended: whether the search is over, or was ended.
    """

    ended: bool = False

    @property
    def sequences(self) -> list[BeamSearchSequence]:
        """vLLM's name for ``outputs``."""
        return cast(list[BeamSearchSequence], self.outputs)

    @property
    def finished(self) -> bool:
        """Whether the search is over, or the request failed."""
        return self.ended or self.error is not None


def search_params_list(params: object, count: int) -> list[BeamSearchParams]:
    """Search parameters for each of ``count`` prompts."""
    return one_for_each("params", params, BeamSearchParams, count, "a BeamSearchParams, or a list of them")


def as_search_output(output: RequestOutput) -> BeamSearchOutput:
    """The output of a search; for that of a prompt that never became a request, one without hypotheses."""
    if isinstance(output, BeamSearchOutput):
        return output
    fields = {field.name: getattr(output, field.name) for field in dataclasses.fields(RequestOutput)}
    return BeamSearchOutput(**fields, ended=True)
