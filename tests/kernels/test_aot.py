"""Compiling for GPUs that are not there: what it finds out about kernels."""

from __future__ import annotations

import jax
import pytest
from kernels.gpu_compiling import compile_cases, needs_gpu_compilers

from pallas_kernels import aot

pytestmark = needs_gpu_compilers


@pytest.fixture(scope="module")
def report():
    return compile_cases("kernels.aot_examples:cases", ("a100", "h200", "b200"))


TARGETS = {"a100": "sm_80", "h200": "sm_90a", "b200": "sm_100a"}


@pytest.mark.parametrize("gpu", TARGETS)
def test_triton_kernels_become_machine_code_for_each_gpu(report, gpu):
    (kernel,) = report[gpu, "twice in triton"]
    assert kernel["name"] == "double"
    assert kernel["target"] == TARGETS[gpu]
    assert kernel["threads"] == 128
    assert 0 < kernel["registers"] < 64
    assert kernel["spill_bytes"] == kernel["shared_bytes"] == 0


@pytest.mark.parametrize("gpu", TARGETS)
def test_instructions_and_shared_memory_of_a_dot_are_counted(report, gpu):
    (kernel,) = report[gpu, "a dot in triton"]
    expected = {"a100": "mma.sync", "h200": "wgmma.mma_async", "b200": "tcgen05.mma"}[gpu]
    assert kernel["instructions"][expected] > 0
    assert kernel["shared_bytes"] >= 64 * 64 * 2


def test_a_kernel_that_holds_too_much_shows_its_spills(report):
    (kernel,) = report["h200", "too much in triton"]
    assert kernel["spill_bytes"] > 0


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_mosaic_kernels_are_found_too(report, gpu):
    (kernel,) = report[gpu, "twice in mosaic"]
    assert kernel["target"] == TARGETS[gpu]
    assert kernel["spill_bytes"] == 0


def test_programs_over_several_gpus_compile(report):
    assert report["h200", "eight"] == []


def test_a_process_in_which_jax_has_started_is_refused():
    jax.devices()
    with pytest.raises(RuntimeError, match="a process of its own"):
        aot.prepare()


def test_unknown_gpus_and_texts_that_are_no_ptx_are_refused():
    with pytest.raises(ValueError, match=r"gpu='v100' is not described; there are a100, h100, h200, b200"):
        aot.mesh_of("v100")
    with pytest.raises(ValueError, match="no PTX"):
        aot.assemble("hello")
    with pytest.raises(RuntimeError, match="ptxas refuses a kernel for sm_90a"):
        aot.assemble(".version 9.0\n.target sm_90a\n.address_size 64\nnonsense\n")
