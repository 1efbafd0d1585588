"""All sizes of data, pipe and tensor together (``combinations_cases.py``)."""

from __future__ import annotations

import pytest
from parallel.devices_process import run_cases


def test_a_combination_of_all_axes():
    assert run_cases("combinations_cases.py") == 3


@pytest.mark.sweep
def test_every_combination_of_all_axes():
    assert run_cases("combinations_cases.py", mark="sweep") == 16 + 16 + 11 - 1
