"""The environment variables that this package reads; others that begin like them are mistakes."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

from pallas_kernels.errors import ChoiceError

PREFIX = "PALLAS_KERNELS_"
CPU_LIBRARY = "PALLAS_KERNELS_CPU_LIBRARY"
CPU_INSTRUCTION_SET = "PALLAS_KERNELS_CPU_INSTRUCTION_SET"
CPU_REQUIRED = "PALLAS_KERNELS_CPU_REQUIRED"
"""Read by the build alone."""


def variable_of(operation: str) -> str:
    """The variable that chooses an operation's implementation."""
    return PREFIX + operation.upper()


def check_environment(operations: Iterable[str]) -> None:
    """Raise ``ChoiceError`` for the first variable that begins with ``PREFIX`` and that nothing reads.

    operations: those that are registered, each with a variable of its own.
    """
    known = (*map(variable_of, operations), CPU_LIBRARY, CPU_INSTRUCTION_SET, CPU_REQUIRED)
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            rest = {variable.removeprefix(PREFIX): variable for variable in known}
            close = difflib.get_close_matches(name.removeprefix(PREFIX), rest, 1)
            suggestion = f"; did you mean {rest[close[0]]}?" if close else ""
            raise ChoiceError(f"{name}={os.environ[name]!r} means nothing; there are {', '.join(known)}{suggestion}")
