"""Kernels in Mosaic GPU as machine code for H100 and H200, at the shapes of models (`mosaic_attention_cases`,
`mosaic_matmul_cases`).

That they fit into shared memory is part of compiling: Mosaic GPU refuses a kernel that asks for more than there is.
"""

from __future__ import annotations

import pytest
from kernels.gpu_compiling import compile_cases, needs_gpu_compilers
from kernels.mosaic_attention_cases import MODELS
from kernels.mosaic_matmul_cases import MODELS as EXPERTS

from pallas_kernels.mosaic_gpu.tiles import ATTENTION, SCALED_ATTENTION

pytestmark = needs_gpu_compilers


def check_attention(kernels: list[dict]) -> None:
    """A producer's copies by TMA, products by wgmma that are waited for, nothing spilled."""
    for kernel in kernels:
        print(kernel)
        assert kernel["target"] == "sm_90a"
        assert kernel["spill_bytes"] == kernel["stack_bytes"] == 0
    main = next(kernel for kernel in kernels if "paged_attention" in kernel["name"])
    # With several warpgroups the launch has 168 registers a thread, which the consumers raise and the producer lowers.
    assert main["registers"] <= (168 if main["threads"] == 384 else 255)
    instructions = main["instructions"]
    assert instructions["wgmma.mma_async"] > 0
    assert instructions["wgmma.wait_group"] >= 2  # of the products with keys and with values
    assert instructions["cp.async.bulk.tensor"] >= 4  # queries, keys, values, results
    assert instructions["mbarrier"] > 0


def test_a_model_s_attention_becomes_machine_code():
    report = compile_cases("kernels.mosaic_attention_cases:cases", ["h200"], ["Llama-3-8B"])
    check_attention(report["h200", "Llama-3-8B"])


def compile_for_both(cases: str, expected: set[str]) -> list[list[dict]]:
    """The kernels of each case for an H200. For an H100 the same process finds all of them compiled: they are equal."""
    report = compile_cases(cases, ["h200", "h100"], together=True)
    assert set(report) == {(gpu, case) for gpu in ("h200", "h100") for case in expected}
    assert all(kernels == [] for (gpu, _), kernels in report.items() if gpu == "h100")
    return [kernels for (gpu, _), kernels in report.items() if gpu == "h200"]


@pytest.mark.sweep
def test_every_model_s_attention_becomes_machine_code():
    for kernels in compile_for_both("kernels.mosaic_attention_cases:cases", set(MODELS)):
        check_attention(kernels)


def test_rings_hold_two_tiles_or_more():
    for table in (ATTENTION, SCALED_ATTENTION):
        assert all(tiles.stages >= 2 for sizes in table.values() for tiles in sizes.values())


def check_products(kernels: list[dict]) -> None:
    """A producer's copies by TMA; products by wgmma of which one is under way while the one before is waited for."""
    (kernel,) = kernels
    print(kernel)
    assert kernel["target"] == "sm_90a"
    assert kernel["spill_bytes"] == kernel["stack_bytes"] == 0
    assert (kernel["registers"], kernel["threads"]) == (168, 384)
    instructions = kernel["instructions"]
    assert instructions["wgmma.mma_async"] >= 4  # 64 products a step, 16 an instruction
    assert instructions["wgmma.wait_group"] == 2  # for all but one in the loop, and for all after it
    assert kernel["products_ahead"] == 1
    assert instructions["cp.async.bulk.tensor"] >= 3  # rows, weights, results
    assert instructions["mbarrier"] > 0


def test_a_mixture_s_products_become_machine_code():
    report = compile_cases("kernels.mosaic_matmul_cases:cases", ["h200"], ["Qwen3-30B-A3B, prefill"])
    check_products(report["h200", "Qwen3-30B-A3B, prefill"])


@pytest.mark.sweep
def test_every_mixture_s_products_become_machine_code():
    for kernels in compile_for_both("kernels.mosaic_matmul_cases:cases", set(EXPERTS)):
        check_products(kernels)
