"""A whole engine step becomes machine code for a GPU that is not here, with the GPU kernels in it."""

from __future__ import annotations

import pytest
from kernels.gpu_compiling import compile_cases, needs_gpu_compilers

pytestmark = [needs_gpu_compilers, pytest.mark.sweep]


def test_forward_and_sample_for_one_h200_and_attention_in_shard_map_for_eight():
    report = compile_cases("kernels.engine_programs:cases", ("h200",))
    names = {case: {kernel["name"].removesuffix("_mosaic_gpu_kernel") for kernel in kernels}
             for (_, case), kernels in report.items()}
    by_default = {"rotate_and_write_heads", "paged_attention", "merge_splits"}
    by_triton = {"rotate_and_write_heads", "ragged_attention", "decode_attention", "combine_splits"}
    assert names == {
        "begin for 256 rows": set(), "layers for 256 rows": by_default, "end for 256 rows": set(),
        "sample (greedy) for 64 rows": set(), "sample (full) for 64 rows": set(), "attention over eight": by_triton}
    for kernels in report.values():
        assert all(kernel["spill_bytes"] == 0 for kernel in kernels)
