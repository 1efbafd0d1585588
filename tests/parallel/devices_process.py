"""Runs test cases in a process of their own, which has eight virtual CPU devices: JAX is told when it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

NUM_DEVICES = 8
_HERE = Path(__file__).parent


def run_cases(name: str, *, mark: str = "not sweep") -> int:
    """Run the tests of a file beside this one; how many passed. Any that fails fails the caller, with its report."""
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={NUM_DEVICES}"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", mark,
               str(_HERE / name)]
    done = subprocess.run(command, cwd=_HERE.parents[1], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])
