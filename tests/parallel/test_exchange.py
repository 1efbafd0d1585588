"""Experts that are spread over replicas (``exchange_cases.py``)."""

from __future__ import annotations

import pytest
from parallel.devices_process import run_cases


def test_tokens_reach_the_experts_of_other_replicas():
    assert run_cases("exchange_cases.py") == 1 + 1 + 3


@pytest.mark.sweep
def test_tokens_of_every_kind_of_layer_reach_the_experts_of_other_replicas():
    assert run_cases("exchange_cases.py", mark="sweep") == 4 * (3 + 4) - 1 + 2 + 1
