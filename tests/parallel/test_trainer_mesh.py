"""Parameters on the mesh of a trainer (``trainer_mesh_cases.py``)."""

from __future__ import annotations

from parallel.devices_process import run_cases


def test_parameters_on_the_mesh_of_a_trainer():
    assert run_cases("trainer_mesh_cases.py") == 2
