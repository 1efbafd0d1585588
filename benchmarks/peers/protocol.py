"""How a driver talks with ``compare.py``: one JSON object per line in each direction.

Drivers run under the Python of the engine that they drive, so this needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, Protocol, TextIO

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
"""The cores that an engine may use."""

Requests = list[dict[str, Any]]
"""Each with a ``prompt`` (token ids) and ``max_tokens``, which are generated whatever they are."""


class Driver(Protocol):
    """An engine that is ready to generate."""

    version: str
    """What it is, for the report."""

    def generate(self, requests: Requests, *, cold: bool, sampling: dict[str, Any]) -> dict[str, Any]:
        """Generate all requests, submitted together.

        cold: no key or value computed in an earlier call may be used. sampling: greedy where empty.
        Returns ``seconds`` in all; ``first`` and ``last``, for each request the seconds from the call to its first and
        last token (``None`` where the engine does not tell); ``tokens``, the ids of each request's first sample;
        if it is known, ``computed``, how many tokens went through the model; and ``prompts_changed`` where that was
        needed to be cold.
        """


def serve(make: Callable[[dict[str, Any]], Driver]) -> None:
    """Make a driver from the options in ``sys.argv[1]``, then do what comes on standard input until it ends.

    What libraries print goes to standard error.
    """
    commands, replies = _take(0, "r"), _take(1, "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    driver: Driver | None = None
    try:
        driver = make(json.loads(sys.argv[1]))
        _reply(replies, {"version": driver.version})
        for line in commands:
            _reply(replies, driver.generate(**json.loads(line)))
    except Exception as error:
        traceback.print_exc()
        _reply(replies, {"error": f"{type(error).__name__}: {error}"})
        sys.exit(1)
    finally:
        close = getattr(driver, "close", None)
        if close is not None:
            close()


def _take(descriptor: int, mode: str) -> TextIO:
    return os.fdopen(os.dup(descriptor), mode)


def _reply(stream: TextIO, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()
