"""Ctrl-C as a flag to look at between steps, so that no step is torn apart in the middle."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
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
