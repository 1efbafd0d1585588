"""The sampler of a vocabulary that is cut over devices: the tokens of one device, and no gather of whole rows.

The cases run in one process with eight virtual devices (``sampler_cases.py``).
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CASES = ("full", "masked", "processed", "prompt")
SHORT_LISTS = 4 * 64
"""The most that four devices gather for a row: the list that top-k looks at."""


@functools.cache
def _found():
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-m", "parallel.sampler_cases", *CASES], capture_output=True, text=True,
                          env=environment, cwd=TESTS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: found for line in done.stdout.splitlines() for name, found in json.loads(line).items()}


@pytest.mark.parametrize("case", CASES)
def test_tokens_ranks_and_lists_are_those_of_one_device_for_random_tied_and_odd_logits(case):
    found = _found()[case]
    assert all(all(equal) for equal in found["same"].values()), found["same"]
    assert min(found.get("tokens", [25])) >= 25, "of 36 rows few differ: the case says little"


@pytest.mark.parametrize("case", CASES)
def test_logprobs_differ_in_the_last_bits_alone(case):
    furthest = [number for numbers in _found()[case]["apart"].values() for number in numbers]
    assert furthest
    assert max(furthest) < 5e-6


@pytest.mark.parametrize("case", CASES[:3])
def test_each_device_counts_the_tokens_that_were_chosen(case):
    assert _found()[case]["counts"] == [True] * 3


@pytest.mark.parametrize("case", CASES)
def test_no_whole_row_is_gathered(case):
    found = _found()[case]
    assert 0 < found["gathered"] <= SHORT_LISTS < found["vocab"]
