"""Replicas whose experts are spread over all of them (``experts_cases.py``)."""

from __future__ import annotations

import pytest
from parallel.devices_process import run_cases


def test_replicas_that_share_their_experts():
    assert run_cases("experts_cases.py") == 9


@pytest.mark.sweep
def test_more_replicas_that_share_their_experts():
    assert run_cases("experts_cases.py", mark="sweep") == 1
