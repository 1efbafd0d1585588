"""Compiling kernels for GPUs in a process of its own, many cases at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pallas_kernels import aot

needs_gpu_compilers = pytest.mark.skipif(aot.unavailable() is not None, reason=f"GPU compilers: {aot.unavailable()}")

type Report = dict[tuple[str, str], list[dict]]


def compile_cases(
    cases: str, gpus: Sequence[str] = tuple(aot.GPUS), match: Sequence[str] = ("",), *, together: bool = False
) -> Report:
    """The kernels (see ``pallas_kernels.aot.__main__``) by GPU and name of the case; fails for a case that has none.

    cases: MODULE:FUNCTION, where FUNCTION gets a GPU's name and returns ``aot.Case``s.
    together: in one process for all GPUs; not for Mosaic GPU, which compiles equal kernels once in a process.
    """
    groups = [gpus] if together else [(gpu,) for gpu in gpus]
    return {(line["gpu"], line["case"]): line["kernels"]
            for group in groups for line in compile_in_a_process(group, cases, match)}


def compile_in_a_process(gpus: Sequence[str], cases: str, match: Sequence[str] = ("",)) -> list[dict]:
    """The lines of the command; fails for a case that has an error, and where there is none."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "pallas_kernels.aot", cases, "--gpu", *gpus, "--match", *match]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    errors = [f"{line['gpu']} {line['case']}: {line['error']}" for line in lines if "error" in line]
    assert run.returncode == 0, "\n".join(errors) or run.stderr[-4000:]
    assert lines, f"no case matches {match}"
    return lines
