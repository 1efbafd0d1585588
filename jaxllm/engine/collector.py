"""``Collector``: gathers what one request produces and shows it as ``RequestOutput``."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from jaxllm.engine.request import Request, Sequence
from jaxllm.engine.stopping import may_stop
from jaxllm.interrupt import HeldInterrupts
from jaxllm.outputs import CompletionOutput, RequestOutput
from jaxllm.outputs import TokenLogprobs as LogprobDict
from jaxllm.sampling import ShortLogprobs, VocabLogprobs, VocabularyLogprobs, from_vocabulary
from jaxllm.tokenization import IncrementalDetokenizer, StopChecker, Tokenizer


@dataclasses.dataclass(slots=True)
class _Text:
    """One sample's text. Tokens are decoded when the text is wanted: at each one if stop strings are to be found."""

    detokenizer: IncrementalDetokenizer
    stops: StopChecker
    num_decoded: int = 0
    parts: list[str] = dataclasses.field(default_factory=list)

    def feed(self, tokens: list[int], *, armed: bool) -> str | None:
        """Decode tokens; returns the stop string that they complete, if any."""
        self.parts.append(self.stops.feed(self.detokenizer.append(tokens), armed=armed))
        return self.stops.stop_string

    def finish(self, *, armed: bool) -> str | None:
        """Decode what was held back at the end; returns the stop string that it completes, if any."""
        if self.stops.stop_string is None:
            self.parts.append(self.stops.feed(self.detokenizer.finish(), armed=armed) + self.stops.finish())
        return self.stops.stop_string

    @property
    def text(self) -> str:
        """What can be shown so far."""
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""


class Collector:
    """The output side of one request.

    lock: held by whoever records the request's progress; ``output`` takes it, so that it can be called from any thread.
    inbox: where the engine puts the collector when its request has progressed.

    wants_hidden_state: whether the hidden state of the prompt's last token is still to come (``add_hidden_state``).
    wants_logprobs: whether each token's log-probabilities have to be added (``add_logprobs``). finds_stop_strings:
    whether each token has to be (``add_token``).
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None, lock: AbstractContextManager[Any],
                 inbox: collections.deque[Collector] | None = None) -> None:
        self.request = request
        self._lock = lock
        self.inbox = inbox
        params = request.params
        self._decode: Callable[[int], str | None] = tokenizer.token_text if tokenizer is not None else lambda _: None
        self._prompt_logprobs: list[LogprobDict | None] | None = None
        if params.prompt_logprobs is not None:
            first = min(max(params.prompt_logprobs_start, 1), len(request.prompt_token_ids))
            self._prompt_logprobs = [None] * first
        self._logprobs: list[list[LogprobDict]] = [[] for _ in request.sequences]
        self._cumulative = [0.0] * len(request.sequences)
        self._kept_mass: list[list[float]] = [[] for _ in request.sequences]
        self._hidden_state: np.ndarray | None = None
        self._texts: list[_Text] = []
        if params.detokenize and tokenizer is not None:
            self._texts = [self._new_text(tokenizer) for _ in request.sequences]
        self.wants_logprobs = params.wants_logprobs
        self.finds_stop_strings = bool(self._texts and params.stop_strings)

    def _new_text(self, tokenizer: Tokenizer) -> _Text:
        params = self.request.params
        return _Text(
            IncrementalDetokenizer(
                tokenizer,
                skip_special_tokens=params.skip_special_tokens,
                spaces_between_special_tokens=params.spaces_between_special_tokens,
            ),
            StopChecker(params.stop_strings, include_stop_str_in_output=params.include_stop_str_in_output),
        )

    def add_token(self, sequence: Sequence) -> str | None:
        """Take in a sequence's newest token; returns the stop string that it completes, if any."""
        return self._decode_new(sequence, armed=may_stop(sequence))

    def add_logprobs(self, sequence: Sequence, result: Any, number: int) -> None:
        """Take in the log-probabilities of a sequence's newest token, that of a ``StepResult``'s sampler ``number``."""
        params, token, index = self.request.params, sequence.last_token, sequence.index
        processed = self.request.reports_processed
        if number in result.vocab_logprobs:
            values, row = result.vocab_logprobs[number]
            kept_mass = values.kept_mass[row]
            line = from_vocabulary(self._whole_line(token, values, row, processed=processed), params.logprobs,
                                   params.logprob_token_ids or ())
            logprob = line[token].logprob
        else:
            values = result.sampled
            kept_mass = values.kept_mass[number] if processed else 0.0
            line = self._line(token, values, number, params.logprobs or 0, processed=processed)
            logprob = float(values.logprob[number])
        self._logprobs[index].append(line)
        self._cumulative[index] += logprob
        if processed:
            self._kept_mass[index].append(float(kept_mass))

    @property
    def wants_hidden_state(self) -> bool:
        return self.request.params.reports_hidden_state and self._hidden_state is None

    def add_hidden_state(self, row: np.ndarray) -> None:
        """Take in the hidden state that the first token was sampled from."""
        self._hidden_state = row.astype(np.float32)

    def add_prompt_logprobs(self, first: int, count: int, values: Any, offset: int) -> None:
        """Take in the log-probabilities of prompt tokens ``first .. first + count - 1``, from line ``offset`` on.

        Positions reported before (the request was preempted and computed anew) are skipped.
        """
        wanted = self.request.params.prompt_logprobs
        if self._prompt_logprobs is None or wanted is None:
            return
        for position in range(max(first, len(self._prompt_logprobs)), first + count):
            token, row = int(self.request.prompt_token_ids[position]), offset + position - first
            if isinstance(values, VocabLogprobs):
                line = from_vocabulary(self._whole_line(token, values, row, processed=False), wanted)
            else:
                line = self._line(token, values, row, wanted, processed=False)
            self._prompt_logprobs.append(line)

    def _line(self, token: int, values: Any, row: int, count: int, *, processed: bool) -> LogprobDict:
        raw = (values.raw_logprob[row], values.raw_top_logprobs[row]) if processed else (None, None)
        return ShortLogprobs(token, values.logprob[row], values.rank[row], values.top_ids[row],
                             values.top_logprobs[row], count, self._decode, *raw)

    def _whole_line(self, token: int, values: VocabLogprobs, row: int, *, processed: bool) -> VocabularyLogprobs:
        # Copies, so that one request's line does not keep those of the others in memory.
        raw = np.array(values.raw[row])
        if not processed:
            return VocabularyLogprobs(token, raw, None, self._decode)
        return VocabularyLogprobs(token, np.array(values.processed[row]), raw, self._decode)

    def finish(self, sequence: Sequence) -> str | None:
        """End a sample's text; returns the stop string that its very end completes, if any."""
        if not self._texts:
            return None
        text = self._texts[sequence.index]
        armed = may_stop(sequence)
        if text.stops.stop_string is None:
            self._decode_new(sequence, armed=armed)
        return text.finish(armed=armed)

    def output(self) -> RequestOutput:
        """The request as it stands, a copy that later steps do not touch."""
        request = self.request
        with self._lock, HeldInterrupts():
            return RequestOutput(
                request_id=request.request_id,
                prompt=request.prompt,
                prompt_token_ids=request.prompt_token_ids.tolist(),
                outputs=[self._completion(sequence) for sequence in request.sequences],
                prompt_logprobs=None if self._prompt_logprobs is None else list(self._prompt_logprobs),
                num_cached_tokens=request.num_cached_tokens,
                metrics=dataclasses.replace(request.metrics),
                error=request.error,
                hidden_state=self._hidden_state,
            )

    def _completion(self, sequence: Sequence) -> CompletionOutput:
        index, text = sequence.index, ""
        if self._texts:
            if not sequence.finished:
                self._decode_new(sequence, armed=False)
            text = self._texts[index].text
        has_logprobs = self.request.params.wants_logprobs
        return CompletionOutput(
            index=index,
            text=text,
            token_ids=sequence.output_token_ids.tolist(),
            logprobs=list(self._logprobs[index]) if has_logprobs else None,
            logprobs_mode=self.request.logprobs_mode if has_logprobs else None,
            kept_mass=list(self._kept_mass[index]) if self.request.reports_processed else None,
            cumulative_logprob=self._cumulative[index] if has_logprobs else None,
            finish_reason=sequence.finish_reason,
            stop_reason=sequence.stop_reason,
            seed=self.request.seed,
        )

    def _decode_new(self, sequence: Sequence, *, armed: bool) -> str | None:
        text, request = self._texts[sequence.index], self.request
        tokens = sequence.output_token_ids[text.num_decoded:].tolist()
        shown = tokens
        if request.params.structured_outputs is not None:
            # What follows a grammar must parse, also where special tokens are shown.
            shown = [token for token in tokens if token not in request.eos_token_ids]
        text.num_decoded += len(tokens)
        return text.feed(shown, armed=armed)
