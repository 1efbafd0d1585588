"""The progress bar of a batch: counts samples, shows tokens per second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from jaxllm.engine.collector import Collector

Bar = bool | Callable[..., Any]
"""Whether to show a bar, or what makes one of the arguments of ``tqdm``."""


def open_bar(shown: Bar, **arguments: Any) -> Any:
    """A bar with these arguments of ``tqdm``, shown as ``ProgressBar`` says."""
    if callable(shown):
        return shown(**arguments, dynamic_ncols=True)
    disable = None if shown and _can_be_written_to(sys.stderr) else True
    return tqdm(**arguments, dynamic_ncols=True, disable=disable)


class ProgressBar:
    """A ``tqdm`` bar over ``total`` samples.

    shown: ``True`` shows it if standard error is a terminal or a notebook. A callable, such as
        ``functools.partial(tqdm, leave=False)``, makes the bar, and decides itself whether it is seen.
    """

    def __init__(self, total: int, *, shown: Bar) -> None:
        self._bar = open_bar(shown, total=total, desc="Generating", unit="sample")
        self._started = time.perf_counter()
        self._tokens: dict[str, int] = {}
        self._finished: dict[str, int] = {}
        self._num_tokens = 0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        self._bar.close()

    def update(self, collector: Collector) -> None:
        """Show a request's progress."""
        if getattr(self._bar, "disable", False):
            return
        request = collector.request
        tokens = sum(sequence.num_output for sequence in request.sequences)
        finished = sum(sequence.finished for sequence in request.sequences)
        self._num_tokens += tokens - self._tokens.get(request.request_id, 0)
        self._tokens[request.request_id] = tokens
        self._bar.set_postfix_str(f"{self.rate():.1f} tokens/s", refresh=False)
        self._bar.update(finished - self._finished.get(request.request_id, 0))
        self._finished[request.request_id] = finished

    def rate(self) -> float:
        """Tokens generated per second so far, 0 at the very start."""
        elapsed = time.perf_counter() - self._started
        return self._num_tokens / elapsed if elapsed > 0 else 0.0


def _can_be_written_to(stream: Any) -> bool:
    # A program without a console has no standard error, and one that closed it still has the object.
    return stream is not None and not getattr(stream, "closed", False)
