"""Triton kernels become machine code that can be fast, for GPUs that are not here, at the shapes of models.

What is demanded: no spills; few enough registers and little enough shared memory for the thread blocks that should
share a multiprocessor; tensor cores; and copies into shared memory that run ahead of the products by at least a stage.
The times that result only a GPU can tell.
"""

from __future__ import annotations

import pytest
from kernels.gpu_compiling import compile_cases, needs_gpu_compilers

from pallas_kernels import aot

pytestmark = needs_gpu_compilers

TENSOR_CORES = {"a100": ("mma.sync",), "h100": ("wgmma.mma_async",), "h200": ("wgmma.mma_async",),
                "b200": ("tcgen05.mma", "mma.sync")}
REGISTERS_OF_A_CORE = 65_536


def check(gpu: str, case: str, kernels: list[dict]) -> None:
    names = [kernel["name"] for kernel in kernels]
    if "attention" in case:
        assert names == ["ragged_attention", "decode_attention", "combine_splits"], case
    else:
        assert names == ["write_heads" if " write" in case and "rope" not in case else "rotate_and_write_heads"], case
    for kernel in kernels:
        what = f"{gpu} {case}: {kernel}"
        print(f"{gpu} {case}: {kernel['name']}: {kernel['registers']} registers x {kernel['threads']} threads, "
              f"{kernel['shared_bytes']} B shared, {kernel['spill_bytes']} B spilled")
        assert kernel["spill_bytes"] == 0, what
        assert kernel["shared_bytes"] <= aot.GPUS[gpu].shared_per_block, what
        blocks = {"ragged_attention": 1, "decode_attention": 2, "combine_splits": 16}.get(kernel["name"], 4)
        if "int8, deterministic" in case and "decode" in kernel["name"]:
            blocks = 1  # the tile of prefill, and factors of keys beside it
        assert kernel["registers"] * kernel["threads"] * blocks <= REGISTERS_OF_A_CORE, what
        assert kernel["shared_bytes"] * blocks <= aot.GPUS[gpu].shared_per_core, what
        if kernel["name"].endswith("_attention"):
            found = kernel["instructions"]
            wanted = TENSOR_CORES[gpu]
            if kernel["name"] == "decode_attention" and "deterministic" not in case:
                wanted = ("mma.sync",)  # 16 queries: a quarter of what Hopper's and Blackwell's instructions take
            assert any(found[name] for name in wanted), what
            assert found["cp.async.commit_group"] >= 2, what
            assert kernel["copies_ahead"] >= 1, what


def test_llama_for_h200():
    for (gpu, case), kernels in compile_cases(
            "kernels.triton_programs:cases", ("h200",),
            ("llama-3-8b attention: full, blocks of 64, deter", "llama-3-8b rope")).items():
        check(gpu, case, kernels)


@pytest.mark.sweep
@pytest.mark.parametrize("gpus", [("a100",), ("h100", "h200"), ("b200",)], ids=" and ".join)
def test_all_models(gpus):
    report = compile_cases("kernels.triton_programs:cases", gpus, together=True)
    assert len(report) == len(gpus) * 26
    for (gpu, case), kernels in report.items():
        check(gpu, case, kernels)
