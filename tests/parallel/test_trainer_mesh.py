"""Parameters on the mesh of a trainer (``trainer_mesh_cases.py``)."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from parallel.devices_process import run_cases

from jaxllm import ParameterError
from jaxllm.parallel.mesh import as_device_mesh


def test_parameters_on_the_mesh_of_a_trainer():
    assert run_cases("trainer_mesh_cases.py") == 2


def test_a_mesh_has_devices():
    with pytest.raises(ParameterError, match=r"mesh=\{'tp': 0\} is not allowed: one with devices"):
        as_device_mesh(jax.sharding.Mesh(np.array([], object), ("tp",)))
