"""Every case has a test that runs in the ordinary suite, and every test that names a case names one that exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conformance.cases import CASES

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tests_of():
    """The tests of each case number, as pytest collects them: sweeps, skipped and xfailed tests do not count."""
    files = [str(file) for file in TESTS.rglob("test_*.py") if "mark.case(" in file.read_text()]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "list_cases", "-m", "case and not sweep"]
    found = subprocess.run([*command, *files], capture_output=True, text=True, check=False, cwd=TESTS.parent,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])})
    assert found.returncode == 0, found.stdout + found.stderr
    tests = {}
    for number, test in re.findall(r"^case (\S+) (.+)$", found.stdout, re.MULTILINE):
        tests.setdefault(int(number), []).append(test)
    return tests


@pytest.mark.parametrize("number", CASES)
def test_every_case_has_a_test(tests_of, number):
    assert tests_of.get(number), f"case {number} has no test: {CASES[number].given}: {CASES[number].right}"


def test_every_test_of_a_case_names_one_that_exists(tests_of):
    assert set(tests_of) <= set(CASES)
