"""The tests notice when jaxllm is broken: each mutant of ``tests/mutants.py`` fails the tests that are named for it.

Mutants run in processes of their own, on those tests alone; all of them pass without a mutant.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import MUTANTS, VARIABLE

TESTS = Path(__file__).parents[1]
IN_EVERY_RUN = ("penalties_miss_the_newest_token", "block_hashes_are_not_chained")


def _failures(tests, mutant=""):
    """Which of the tests fail."""
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "mutants", "-p", "no:cacheprovider", "-q", "--tb=line", *tests],
        capture_output=True, text=True, check=False, cwd=TESTS.parent,
        env={**os.environ, VARIABLE: mutant, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])})
    failures = set(re.findall(r"^fails: (.+)$", found.stdout, re.MULTILINE))
    ran = pytest.ExitCode.TESTS_FAILED if failures else pytest.ExitCode.OK
    assert found.returncode == ran, found.stdout + found.stderr
    return failures


@pytest.mark.parametrize("mutant", [
    name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.sweep) for name in MUTANTS])
def test_a_mutant_fails_the_tests_that_are_about_what_it_breaks(mutant):
    tests = MUTANTS[mutant].noticed_by
    assert _failures(tests, mutant) == set(tests)


@pytest.mark.sweep
def test_without_a_mutant_all_of_those_tests_pass():
    assert _failures([test for mutant in MUTANTS.values() for test in mutant.noticed_by]) == set()
