"""``BeamCollector``: shows what one beam search has found as ``BeamSearchOutput``."""

from __future__ import annotations

import collections
import dataclasses
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from jaxllm.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from jaxllm.engine.beam import Beam, Hypothesis
from jaxllm.engine.beam_stopping import new_text
from jaxllm.engine.collector import Collector
from jaxllm.engine.integrity import IntegrityError
from jaxllm.engine.request import Request, Sequence
from jaxllm.interrupt import HeldInterrupts
from jaxllm.outputs import FinishReason, Logprob
from jaxllm.tokenization import Tokenizer


class BeamCollector(Collector):
    """The output side of a request that is a beam search; see ``Collector``."""

    def __init__(self, request: Request, params: BeamSearchParams, tokenizer: Tokenizer | None,
                 lock: AbstractContextManager[Any], inbox: collections.deque[Collector] | None = None) -> None:
        super().__init__(request, tokenizer, lock, inbox)
        if request.beams is None:
            raise IntegrityError(f"{request} is no beam search")
        self._params = params
        self._selector = request.beams.selector
        self._tokenizer = tokenizer
        self._shown: dict[Hypothesis, BeamSearchSequence] = {}

    def finish(self, sequence: Sequence) -> None:
        """Nothing: texts are made from whole hypotheses."""

    def output(self) -> BeamSearchOutput:
        """The search as it stands, a copy that later steps do not touch."""
        request, selector = self.request, self._selector
        with self._lock, HeldInterrupts():
            self._shown = {found: self._shown.get(found) or self._sequence(found.beam, found.score, *found.ending)
                           for found in selector.finished}
            sequences = list(self._shown.values())
            if not selector.done:
                # They run, or were ended from outside: all for the same reason.
                reason = request.sequences[0].finish_reason
                sequences += [self._sequence(beam, selector.score(beam), reason)
                              for beam in selector.beams if beam.length > 0]
                sequences.sort(key=lambda sequence: -sequence.score)
            return BeamSearchOutput(
                request_id=request.request_id,
                prompt=request.prompt,
                prompt_token_ids=request.prompt_token_ids.tolist(),
                outputs=[dataclasses.replace(sequence, index=index)
                         for index, sequence in enumerate(sequences[: self._params.num_returned])],
                num_cached_tokens=request.num_cached_tokens,
                metrics=dataclasses.replace(request.metrics),
                error=request.error,
                ended=request.finished,
            )

    def _sequence(self, beam: Beam, score: np.float32, reason: FinishReason | None,
                  stop_reason: int | str | None = None) -> BeamSearchSequence:
        path = beam.path()
        token_ids = [each.token for each in path]
        return BeamSearchSequence(
            index=0,
            text=self._text(token_ids),
            token_ids=token_ids,
            logprobs=[{each.token: Logprob(float(each.logprob), each.rank, self._decode(each.token))}
                      for each in path],
            logprobs_mode="raw_logprobs",
            cumulative_logprob=float(beam.cum_logprob),
            finish_reason=reason,
            stop_reason=stop_reason,
            score=float(score),
        )

    def _text(self, token_ids: list[int]) -> str:
        if self._tokenizer is None:
            return ""
        text = new_text(self._tokenizer, self._params.stop_strings,
                        include_stop_str_in_output=self._params.include_stop_str_in_output)
        return text.push(token_ids) + text.finish()
