"""A process in which Triton kernels run in Triton's interpreter, which has to be chosen before Triton is imported.

`Interpreter` starts it and calls functions of test modules there: arguments and results are pickled.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pallas_kernels import triton_launch

needs_triton = pytest.mark.skipif(
    triton_launch.unavailable() is not None, reason=f"Triton kernels: {triton_launch.unavailable()}")


class Interpreter:
    """The process; one for a test module."""

    def __init__(self) -> None:
        environment = os.environ | {
            "TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(Path(__file__).parents[1])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kernels.triton_process"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment)

    def call(self, function: str, *arguments: Any, **options: Any) -> Any:
        """The result of MODULE:FUNCTION; what it raises is raised here."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((function, arguments, options), self._process.stdin)
        self._process.stdin.flush()
        result = pickle.load(self._process.stdout)
        if isinstance(result, BaseException):
            raise result
        return result

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def _serve() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed must not get among the answers
    while True:
        try:
            function, arguments, options = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        module, _, name = function.partition(":")
        try:
            result = getattr(importlib.import_module(module), name)(*arguments, **options)
        except Exception as error:
            result = RuntimeError(f"{type(error).__name__}: {error}")
        pickle.dump(result, answers)
        answers.flush()


if __name__ == "__main__":
    _serve()
