"""``Outcomes``: what steps mean for the requests: tokens handed out, samples ended, requests failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from jaxllm.engine.beam_admission import beam_row
from jaxllm.engine.beam_group import BeamGroup
from jaxllm.engine.collector import Collector
from jaxllm.engine.plan import StepPlan
from jaxllm.engine.request import Request, Sequence, SequenceStatus
from jaxllm.engine.scheduler import Scheduler
from jaxllm.engine.stats import EngineTotals
from jaxllm.engine.stopping import check_stop
from jaxllm.errors import EngineError, ParameterError
from jaxllm.outputs import FinishReason, OutputError
from jaxllm.sampling import NO_TOKEN
from jaxllm.speculative.verify import standing_tokens


class Outcomes:
    """The collectors of the unfinished requests, and what becomes of them. Its caller holds the engine's locks.

    on_end: is told of each request that has ended.
    """

    def __init__(self, scheduler: Scheduler, on_end: Callable[[Request], None] = lambda request: None) -> None:
        self.totals = EngineTotals()
        self._scheduler = scheduler
        self._on_end = on_end
        self._collectors: dict[str, Collector] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._collectors

    def add(self, collector: Collector) -> None:
        """Queue a request."""
        self._scheduler.add(collector.request)
        self._collectors[collector.request.request_id] = collector
        self.totals.num_prompt_tokens += len(collector.request.prompt_token_ids)

    def scheduled(self, plan: StepPlan) -> None:
        """Note that a step begins."""
        now = time.perf_counter()
        self.totals.num_steps += 1
        num_drafts = sum(map(len, plan.drafts.values()))
        self.totals.num_computed_tokens += plan.num_tokens - num_drafts
        self.totals.num_draft_tokens += num_drafts
        self.totals.num_preemptions += len(plan.preempted)
        self.totals.num_swapped_out += len(plan.swap_out)
        self.totals.num_swapped_in += len(plan.swap_in)
        for sequence in plan.admitted:
            metrics = sequence.request.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = now

    def take(self, plan: StepPlan, result: Any) -> list[Collector]:
        """Hand a step's tokens and log-probabilities to their requests, and end those that are done.

        Sequences that have finished since the step was planned are left alone.
        """
        token_ids = [] if result.sampled is None else result.sampled.token_ids[:len(plan.sampled)].tolist()
        for part in result.prompt_logprobs:
            if not part.sequence.finished:
                self._collectors[part.sequence.request.request_id].add_prompt_logprobs(
                    part.first, part.count, part.values, part.offset)
        errors = self._token_errors(plan, token_ids)
        standing = standing_tokens(plan, token_ids)
        taken = token_ids
        if errors:  # a request that fails keeps what all its samples had before this step
            taken = [NO_TOKEN if sequence.request.request_id in errors else token
                     for sequence, token in zip(plan.sampled, token_ids, strict=True)]
        self.totals.num_generated_tokens += self._scheduler.update(plan, taken)
        now = time.perf_counter()
        progressed: dict[str, Collector] = {}
        for row, (sequence, ahead, token) in enumerate(zip(plan.sampled, plan.ahead, token_ids, strict=True)):
            if sequence.status is SequenceStatus.FINISHED:
                continue  # before this step, or its request has failed, or its search ended, or a draft did, just now
            if ahead:
                if ahead >= standing[sequence]:
                    continue
                self._scheduler.extend(sequence, token)
                self.totals.num_generated_tokens += 1
                self.totals.num_computed_tokens += 1
                self.totals.num_accepted_tokens += 1
            request = sequence.request
            request_id = request.request_id
            collector = progressed[request_id] = self._collectors[request_id]
            if request.metrics.first_token_time is None:
                request.metrics.first_token_time = now
            if request_id in errors:
                self._fail_request(request, errors[request_id])
                continue
            if request.beams is not None:
                if not self._advance_beams(request.beams, sequence, result, row):
                    del progressed[request_id]
                continue
            if collector.wants_hidden_state:
                collector.add_hidden_state(result.hidden[row])
            if collector.wants_logprobs:
                collector.add_logprobs(sequence, result, row)
            stop_reason: int | str | None
            reason, stop_reason = check_stop(sequence, token)
            if collector.finds_stop_strings:
                stop_string = collector.add_token(sequence)
                if stop_string is not None and reason != "stop":
                    reason, stop_reason = "stop", stop_string
            if reason is not None:
                self._finish(sequence, collector, reason, stop_reason)
        return list(progressed.values())

    def _token_errors(self, plan: StepPlan, token_ids: list[int]) -> dict[str, EngineError]:
        """By request, why it cannot go on with the tokens it was given; constraints take those of the others in."""
        errors: dict[str, EngineError] = {}
        for sequence, ahead, token in zip(plan.sampled, plan.ahead, token_ids, strict=True):
            if token != NO_TOKEN and sequence.constraint is None:
                continue
            request_id = sequence.request.request_id
            if not sequence.finished and not ahead and request_id not in errors:
                error = _token_error(sequence, token)
                if error is not None:
                    errors[request_id] = error
        return errors

    def _advance_beams(self, beams: BeamGroup, sequence: Sequence, result: Any, row: int) -> bool:
        """Take in the row of one beam; once all are there, let the search take a step. Whether it has."""
        beams.add_row(sequence, *beam_row(result, row, beams.row_width))
        if not beams.ready:
            return False
        succession = beams.advance()
        if beams.selector.done:
            self._end(sequence.request, "stop")
        else:
            self._scheduler.continue_beams(succession)
        return True

    def _end(self, request: Request, reason: FinishReason) -> None:
        for sequence in request.sequences:
            self._scheduler.finish(sequence, reason)
        request.metrics.finished_time = time.perf_counter()
        self._forget(request)

    def _finish(self, sequence: Sequence, collector: Collector, reason: FinishReason, stop_reason: int | str | None
                ) -> None:
        last_string = collector.finish(sequence)
        if reason == "length" and last_string is not None:
            reason, stop_reason = "stop", last_string
        self._scheduler.finish(sequence, reason, stop_reason)
        if sequence.request.finished:
            sequence.request.metrics.finished_time = time.perf_counter()
            self._forget(sequence.request)

    def fail(self, requests: Iterable[Request], error: BaseException) -> list[Collector]:
        """End requests that the scheduler has dropped, with an error."""
        requests = list(requests)
        failed = [self._collectors[request.request_id] for request in requests
                  if request.request_id in self._collectors]
        for request in requests:
            self._fail_request(request, error)
        return failed

    def abort(self, request_id: str) -> Collector | None:
        """End a request; its collector, or ``None`` if no such request is unfinished."""
        if not self._scheduler.abort(request_id):
            return None
        collector = self._forget(self._collectors[request_id].request)
        _close(collector)
        return collector

    def _fail_request(self, request: Request, error: BaseException) -> None:
        parameter = error.parameter if isinstance(error, ParameterError) else None
        request.error = OutputError(type(error).__name__, str(error), parameter)
        self._scheduler.abort(request.request_id, "error")
        if request.request_id in self._collectors:
            _close(self._forget(request))

    def _forget(self, request: Request) -> Collector:
        collector = self._collectors.pop(request.request_id)
        self._on_end(request)
        return collector


def _token_error(sequence: Sequence, token: int) -> EngineError | None:
    """Why a sequence cannot go on with the token that it was given, if so; its constraint takes the token in."""
    constraint = sequence.constraint
    if token == NO_TOKEN:
        reason = ("the logits hold NaN or infinity, or every id was masked, by banned or allowed ids, bad words, the "
                  "grammar, or min_tokens, before which nothing may end")
        if constraint is not None and constraint.error is not None:
            reason = str(constraint.error)
        return EngineError(f"no token could be chosen at position {sequence.num_tokens}: {reason}")
    try:
        if constraint is not None:
            constraint.accept(token)
    except EngineError as error:
        return error
    return None


def _close(collector: Collector) -> None:
    """Complete the texts of a request that was ended from outside."""
    collector.request.metrics.finished_time = time.perf_counter()
    for sequence in collector.request.sequences:
        collector.finish(sequence)
