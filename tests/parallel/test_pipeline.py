"""Stages of a model on devices of their own (``pipeline_cases.py``)."""

from __future__ import annotations

import pytest
from parallel.devices_process import run_cases


def test_pipelines_on_devices_of_their_own():
    assert run_cases("pipeline_cases.py") == 11


@pytest.mark.sweep
def test_more_pipelines_on_devices_of_their_own():
    assert run_cases("pipeline_cases.py", mark="sweep") == 13
