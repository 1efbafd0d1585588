"""``StepLoop``: plans, dispatches and completes steps, one after the other or with the next one planned in between."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from jaxllm.engine.collector import Collector
from jaxllm.engine.outcomes import Outcomes
from jaxllm.engine.plan import StepPlan
from jaxllm.engine.scheduler import Scheduler
from jaxllm.interrupt import HeldInterrupts
from jaxllm.runner.weights import Weights


class DispatchedStep(Protocol):
    """The result of a step that may not be there yet."""

    def fetch(self) -> Any:
        """Wait for it; a ``runner.StepResult`` with numpy arrays."""


class StepRunner(Protocol):
    """What the engine needs of a runner."""

    def dispatch(self, plan: StepPlan) -> DispatchedStep:
        """Start a step, which the device runs after those dispatched before."""

    @property
    def weights(self) -> Weights:
        """The model's parameters."""

    def sleep(self, level: int) -> None:
        """Give back memory."""

    def wake_up(self) -> None:
        """Undo ``sleep``."""

    def compile_all(self) -> None:
        """Compile every program."""

    def reset(self) -> None:
        """Fresh device state."""

    @property
    def intact(self) -> bool:
        """Whether the device state is still whole after a failed step. Waits for the device."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Step:
    plan: StepPlan
    dispatched: DispatchedStep

    @property
    def wanted(self) -> bool:
        """Whether anyone waits for what it computes."""
        return any(not sequence.finished for sequence in self.plan.sequences)


class StepLoop:
    """Each turn completes one step.

    With ``overlap`` the step after it is planned and dispatched first, so that the device has work while the host deals
    with results. Requests get the same from both. Its caller holds the engine's lock; ``bookkeeping`` is held while
    results are recorded.
    """

    def __init__(self, runner: StepRunner, scheduler: Scheduler, outcomes: Outcomes,
                 bookkeeping: AbstractContextManager[Any], *, overlap: bool) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._outcomes = outcomes
        self._bookkeeping = bookkeeping
        self._overlap = overlap
        self._steps: collections.deque[_Step] = collections.deque()

    def turn(self, interrupts: HeldInterrupts) -> list[Collector]:
        """Complete a step; the collectors of the requests that got a token or ended. None if there is nothing to do.

        An exception in the middle ends the requests of its step with an error; the other ones go on if the device state
        is whole. Those that are no ``Exception`` are raised again, with the next turn to complete what was begun.
        """
        progressed = (self._overlapped if self._overlap else self._synchronous)(interrupts)
        self.discard_unwanted()
        return progressed

    def _synchronous(self, interrupts: HeldInterrupts) -> list[Collector]:
        broken = self._begin(interrupts)
        return self._complete(interrupts) if broken is None else self._failed(*broken)

    def _overlapped(self, interrupts: HeldInterrupts) -> list[Collector]:
        broken = None if self._steps else self._begin(interrupts)
        if self._steps:
            broken = self._begin(interrupts)  # while the step before it runs
        ended: list[Collector] = []
        try:
            progressed = self._complete(interrupts)
        finally:
            if broken is not None:  # its requests have what the step before gave them
                ended = self._failed(*broken)
        return list(dict.fromkeys([*progressed, *ended])) if ended else progressed

    def _begin(self, interrupts: HeldInterrupts) -> tuple[StepPlan, BaseException] | None:
        """Plan and dispatch a step, if there is one; the plan and why, if it could not be dispatched."""
        plan = self._scheduler.schedule()
        if plan is None:
            return None
        try:
            self._outcomes.scheduled(plan)
            with interrupts.released():
                dispatched = self._runner.dispatch(plan)
        except BaseException as error:
            return plan, error
        self._steps.append(_Step(plan, dispatched))
        return None

    def _complete(self, interrupts: HeldInterrupts) -> list[Collector]:
        """Wait for the oldest step and hand out its results; the collectors of the requests that progressed."""
        if not self._steps:
            return []
        step = self._steps.popleft()
        try:
            with interrupts.released():
                result = step.dispatched.fetch()
            with self._bookkeeping:
                progressed = self._outcomes.take(step.plan, result)
        except BaseException as error:
            return self._failed(step.plan, error)
        notify(progressed)
        return progressed

    def _failed(self, plan: StepPlan, error: BaseException) -> list[Collector]:
        """End the requests of a step that did not complete. If the device state is lost, all requests end."""
        with self._bookkeeping:
            if self._runner.intact:
                requests = self._scheduler.drop(plan)
            else:
                requests = self._scheduler.reset("error")
                self._steps.clear()
                self._runner.reset()
            ended = self._outcomes.fail(requests, error)
        notify(ended)
        if not isinstance(error, Exception):
            raise error
        return ended

    def discard_unwanted(self) -> None:
        """Forget steps of which no result is wanted; the device runs them to their end all the same."""
        while self._steps and not self._steps[-1].wanted:
            self._steps.pop()


def notify(collectors: Iterable[Collector]) -> None:
    """Tell whoever waits for these requests."""
    for collector in collectors:
        if collector.inbox is not None:
            collector.inbox.append(collector)
