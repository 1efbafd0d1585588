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
BLOCKS = {"ragged_attention": 1, "decode_attention": 2, "combine_splits": 16, "multiply_rows": 2, "multiply_groups": 2}
"""Thread blocks that should share a multiprocessor; 4 of others."""


def check(gpu: str, case: str, kernels: list[dict]) -> None:
    names = [kernel["name"] for kernel in kernels]
    in_bytes = "int8" in case or "float8" in case
    if "matmul" in case or "experts" in case:
        assert names == ["multiply_rows" if "matmul" in case else "multiply_groups"], case
    elif "attention" in case:
        assert names == ["ragged_attention", "decode_attention", "combine_splits"], case
    else:
        assert names == ["write_heads" if " write" in case and "rope" not in case else "rotate_and_write_heads"], case
    for kernel in kernels:
        what = f"{gpu} {case}: {kernel}"
        print(f"{gpu} {case}: {kernel['name']}: {kernel['registers']} registers x {kernel['threads']} threads, "
              f"{kernel['shared_bytes']} B shared, {kernel['spill_bytes']} B spilled")
        assert kernel["spill_bytes"] == 0, what
        assert kernel["shared_bytes"] <= aot.GPUS[gpu].shared_per_block, what
        blocks = BLOCKS.get(kernel["name"], 4)
        if "decode" in kernel["name"] and "deterministic" in case and (in_bytes or "gemma-2" in case):
            blocks = 1  # the tile of prefill, and factors of keys beside it, or heads of 256 numbers
        assert kernel["registers"] * kernel["threads"] * blocks <= REGISTERS_OF_A_CORE, what
        assert kernel["shared_bytes"] * blocks <= aot.GPUS[gpu].shared_per_core, what
        if kernel["name"].endswith("_attention") or kernel["name"].startswith("multiply"):
            found = kernel["instructions"]
            wanted = TENSOR_CORES[gpu]
            if kernel["name"] == "decode_attention" and "deterministic" not in case:
                wanted = ("mma.sync",)  # 16 queries: a quarter of what Hopper's and Blackwell's instructions take
            if "gemma-2" in case and in_bytes and "deterministic" in case:
                wanted = ("mma.sync",)  # 32 queries: sums of 64, of two splits, leave no registers to convert bytes
            assert any(found[name] for name in wanted), what
            assert found["cp.async.commit_group"] >= 2, what
            if "gemma-2" in case and "deterministic" in case and not in_bytes and gpu in ("h100", "h200"):
                # All copies under way are waited for, and those of the next keys and values begin: two stages.
                assert kernel["shared_bytes"] >= 2 * 256 * (64 + 2 * 2 * 32), what
            else:
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
    assert len(report) == len(gpus) * (33 if gpus == ("a100",) else 37)
    for (gpu, case), kernels in report.items():
        check(gpu, case, kernels)


def test_products_for_h200():
    for (gpu, case), kernels in compile_cases(
            "kernels.triton_matmul_programs:cases", ("h200",),
            ("matmul llama-3-8b, qkv", "float8 qwen3-30b-a3b, down")).items():
        check(gpu, case, kernels)


@pytest.mark.sweep
def test_all_products():
    report = compile_cases("kernels.triton_matmul_programs:cases", together=True)
    assert len(report) == 10 + 3 * 14
    for (gpu, case), kernels in report.items():
        check(gpu, case, kernels)
