"""``StepLoop``: plans, dispatches and completes steps, one after the other or with the next one planned in between."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from jaxllm.engine.collector import Collector
from jaxllm.engine.outcomes import Outcomes
from jaxllm.engine.plan import StepPlan
from jaxllm.engine.scheduler import Scheduler
from jaxllm.interrupt import HeldInterrupts


class DispatchedStep(Protocol):
    """The result of a step that may not be there yet."""

    def fetch(self) -> Any:
        """Wait for it; a ``runner.StepResult`` with numpy arrays."""


class ModelWeights(Protocol):
    """A model's parameters, wherever they are: ``runner.Weights``, or over stages ``runner.StagedWeights``."""

    @property
    def params(self) -> Any:
        """All of them."""

    def replace(self, params: Any) -> None:
        """Take others."""

    def take_over(self, other: Any) -> None:
        """Have those of another replica."""


class StepRunner(Protocol):
    """What the engine needs of a runner."""

    def dispatch(self, plan: StepPlan) -> DispatchedStep:
        """Start a step, which the device runs after those dispatched before."""

    @property
    def weights(self) -> ModelWeights | None:
        """The model's parameters; ``None`` where other processes have all that the runner stands for."""

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

    in_flight: steps on the device while one more is waited for, of each of which no other waits for the outcome.
    lost: why the device cannot be used any more, if so: its state could not be made anew.
    """

    def __init__(self, runner: StepRunner, scheduler: Scheduler, outcomes: Outcomes,
                 bookkeeping: AbstractContextManager[Any], *, overlap: bool, in_flight: int = 1) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._outcomes = outcomes
        self._bookkeeping = bookkeeping
        self._depth = in_flight + overlap
        self._steps: collections.deque[_Step] = collections.deque()
        self._broken: tuple[StepPlan, BaseException] | None = None
        self.lost: Exception | None = None

    @property
    def oldest(self) -> DispatchedStep | None:
        """The step to complete next."""
        return self._steps[0].dispatched if self._steps else None

    @property
    def is_stuck(self) -> bool:
        """Whether a step could not be dispatched and none runs: ``complete`` then has nothing to wait for."""
        return self._broken is not None and not self._steps

    def turn(self, interrupts: HeldInterrupts) -> list[Collector]:
        """Complete a step; the collectors of the requests that got a token or ended. None if there is nothing to do.

        An exception in the middle ends the requests of its step with an error; the other ones go on if the device state
        is whole. Those that are no ``Exception`` are raised again, with the next turn to complete what was begun.
        """
        self.begin(interrupts)
        return self.complete(interrupts)

    def begin(self, interrupts: HeldInterrupts) -> None:
        """Plan and dispatch steps, as many as may run at once."""
        while len(self._steps) < self._depth and self._broken is None:
            plan = self._scheduler.schedule()
            if plan is None:
                return
            try:
                self._outcomes.scheduled(plan)
                with interrupts.released():
                    dispatched = self._runner.dispatch(plan)
            except BaseException as error:
                self._broken = plan, error
            else:
                self._steps.append(_Step(plan, dispatched))

    def complete(self, interrupts: HeldInterrupts, fetch: Callable[[], Any] | None = None) -> list[Collector]:
        """The end of a turn. fetch: gives the oldest step's result, which by default is waited for."""
        ended: list[Collector] = []
        try:
            progressed = self._complete(interrupts, fetch)
        finally:
            if self._broken is not None and not self._steps:  # its requests have what the steps before gave them
                (plan, error), self._broken = self._broken, None
                ended = self._failed(plan, error)
        self.discard_unwanted()
        return list(dict.fromkeys([*progressed, *ended])) if ended else progressed

    def _complete(self, interrupts: HeldInterrupts, fetch: Callable[[], Any] | None) -> list[Collector]:
        """Wait for the oldest step and hand out its results; the collectors of the requests that progressed."""
        if not self._steps:
            return []
        step = self._steps.popleft()
        try:
            with interrupts.released():
                result = step.dispatched.fetch() if fetch is None else fetch()
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
                self._broken = None
                try:
                    self._runner.reset()
                except Exception as lost:
                    self.lost = lost
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
