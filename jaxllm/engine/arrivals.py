"""``Arrivals``: waits for the steps of several replicas at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from jaxllm.engine.loop import DispatchedStep, StepLoop
from jaxllm.interrupt import HeldInterrupts

Arrived = tuple[int, Callable[[], Any]]
"""The number of a loop, and what gives the result of its oldest step, or raises what the step did."""


class Arrivals:
    """Which loop's oldest step is there next.

    A thread for each loop waits for its step, and they are taken as they come: no replica waits until another's step is
    done, whose prompt may be long. Which one comes first depends on time, but a request's tokens do not depend on it.
    What does depend is which requests have ended when the next is routed. Where several processes have to route alike,
    ``in_order`` takes one step of each replica that has any, in turns.
    """

    def __init__(self, loops: Sequence[StepLoop], *, in_order: bool = False) -> None:
        self._loops = loops
        self._in_order = in_order
        self._newest = -1
        # Two for each: a step that was discarded may still be waited for.
        self._threads = ThreadPoolExecutor(2 * len(loops), "replica")
        self._awaited: list[tuple[DispatchedStep, Future[Any]] | None] = [None] * len(loops)
        self._any_done = threading.Event()

    def next(self, interrupts: HeldInterrupts) -> Arrived | None:
        """Wait for a step; ``None`` where no loop has any."""
        with interrupts.released():
            return self._in_turn() if self._in_order else self._as_they_come()

    def _in_turn(self) -> Arrived | None:
        for number in self._numbers():
            step = self._loops[number].oldest
            if step is not None:
                self._newest = number
                return number, step.fetch
        return None

    def _as_they_come(self) -> Arrived | None:
        while True:
            self._any_done.clear()
            any_step = False
            for number in self._numbers():
                step = self._loops[number].oldest
                if step is not None:
                    any_step = True
                    future = self._result(number, step)
                    if future.done():
                        self._newest = number
                        return number, future.result
            if not any_step:
                return None
            self._any_done.wait()

    def _numbers(self) -> Iterator[int]:
        """Of the loops, from the one after the one that was taken last."""
        size = len(self._loops)
        return ((self._newest + 1 + offset) % size for offset in range(size))

    def _result(self, number: int, step: DispatchedStep) -> Future[Any]:
        awaited = self._awaited[number]
        if awaited is not None and awaited[0] is step:
            return awaited[1]
        future = self._threads.submit(step.fetch)
        self._awaited[number] = step, future
        future.add_done_callback(lambda _: self._any_done.set())
        return future
