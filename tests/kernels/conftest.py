from __future__ import annotations

import pytest
from kernels.native import INSTRUCTION_SETS, using
from kernels.triton_process import Interpreter


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request):
    """The instruction set that native kernels use during the test."""
    with using(request.param):
        yield request.param


@pytest.fixture(scope="module")
def interpreter():
    """A process in which Triton kernels run in Triton's interpreter."""
    process = Interpreter()
    yield process
    process.close()
