from __future__ import annotations

import pytest
from kernels.native import INSTRUCTION_SETS, using


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request):
    """The instruction set that native kernels use during the test."""
    with using(request.param):
        yield request.param
