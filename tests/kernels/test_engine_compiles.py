"""A whole engine step becomes machine code for GPUs that are not here, with the GPU kernels in it."""

from __future__ import annotations

import pytest
from kernels.engine_programs import LAYERS
from kernels.gpu_compiling import compile_cases, compile_in_a_process, needs_gpu_compilers

pytestmark = [needs_gpu_compilers, pytest.mark.sweep]

ATTENTION = {"rotate_and_write_heads", "paged_attention", "merge_splits"}


def names_of(kernels):
    assert all(kernel["spill_bytes"] == 0 for kernel in kernels)
    return {kernel["name"].removesuffix("_mosaic_gpu_kernel") for kernel in kernels}


def test_forward_and_sample_for_one_h200():
    """With ``deterministic`` products are Triton's, and the kernels of attention are those that are there already."""
    report = compile_cases("kernels.engine_programs:cases", ("h200",))
    assert {case: names_of(kernels) for (_, case), kernels in report.items()} == {
        "begin for 256 rows": set(), "layers for 256 rows": ATTENTION, "end for 256 rows": set(),
        "sample (greedy) for 64 rows": set(), "sample (full) for 64 rows": set(),
        "layers for 256 rows, deterministic": {"rotate_and_write_heads", "multiply_rows"},
        "sample (greedy) for 64 rows, deterministic": {"multiply_rows"}}


def test_forward_and_sample_in_shard_map_for_eight_h200():
    """Two sums over the devices per layer: after attention, and after the feed-forward part."""
    programs = compile_in_a_process(("h200",), "kernels.engine_programs:cases_over_devices")
    lines = {line["case"]: line for line in programs}
    assert {case: names_of(line["kernels"]) for case, line in lines.items()} == {
        "begin for 256 rows": set(), "layers for 256 rows": ATTENTION, "end for 256 rows": set(),
        "sample (greedy) for 64 rows": set(), "sample (full) for 64 rows": set()}
    assert lines["layers for 256 rows"]["collectives"] == {"all-reduce": 2 * LAYERS}
    assert lines["end for 256 rows"]["collectives"] == {}
    assert lines["sample (full) for 64 rows"]["collectives"]
