"""Ctrl-C at moments of our choosing: as a flag to look at between steps, or held back while bookkeeping is done."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class InterruptFlag:
    """Whether Ctrl-C was pressed while guarded. A second one raises ``KeyboardInterrupt`` at once.

    Outside the main thread, where Python delivers no signals, guarding does nothing.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._depth = 0
        self._previous: Any = None

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Collect Ctrl-C instead of raising it; may be nested."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        if self._depth == 0:
            self._previous = signal.signal(signal.SIGINT, self._handle)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                signal.signal(signal.SIGINT, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True


class HeldInterrupts:
    """Holds Ctrl-C back inside its ``with`` block, whose end hands it to the handler that was there before.

    For blocks of microseconds that would leave data in pieces if ``KeyboardInterrupt`` came from within; may be nested.
    Outside the main thread, where Python delivers no signals, and where no Python handler is set, it does nothing.
    """

    def __init__(self) -> None:
        self._pending: list[FrameType | None] = []
        self._previous: Callable[[int, FrameType | None], Any] | None = None
        self._holds = True

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):
                self._previous = previous
                signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is None:
            return
        signal.signal(signal.SIGINT, self._previous)
        self._deliver()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Deliver Ctrl-C as usual for a while, what was held back first."""
        # A flag, as changing the handler costs microseconds, in every step.
        try:
            self._holds = False
            self._deliver()
            yield
        finally:
            self._holds = True

    def _deliver(self) -> None:
        if self._pending and self._previous is not None:
            frame, self._pending = self._pending[-1], []
            self._previous(signal.SIGINT, frame)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._holds or self._previous is None:
            self._pending.append(frame)
        else:
            self._previous(number, frame)
