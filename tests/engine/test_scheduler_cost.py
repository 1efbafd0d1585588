"""What scheduling costs: the host's work per step, and slots of the cache."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable

import numpy as np
import pytest
from engine.scheduled import prompt

from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.limits import SchedulerConfig
from jaxllm.engine.request import Request
from jaxllm.engine.scheduler import Scheduler
from jaxllm.sampling_params import SamplingParams

REPOSITORY = pathlib.Path(__file__).parents[2]


def _count_calls(action: Callable[[], object]) -> int:
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def test_the_cost_of_a_step_does_not_depend_on_how_many_wait() -> None:
    def cost(num_waiting: int) -> tuple[int, int, int]:
        blocks = BlockManager(200, 4)
        limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=40)
        scheduler = Scheduler(limits, blocks)
        requests = [Request(str(i), prompt(4), SamplingParams(seed=i), max_model_len=40) for i in range(num_waiting)]
        for request in requests:
            scheduler.add(request)
        first = scheduler.schedule()
        assert first is not None
        scheduler.update(first, [1] * 4)

        def step() -> None:
            plan = scheduler.schedule()
            assert plan is not None
            scheduler.update(plan, [1] * len(plan.samplers))

        one = Request("one more", prompt(4), SamplingParams(seed=0), max_model_len=40)
        return (
            _count_calls(step),
            _count_calls(lambda: scheduler.add(one)),
            _count_calls(lambda: scheduler.abort("one more")),
        )

    assert cost(100_000) == cost(10)


def test_the_work_of_a_decode_step_does_not_depend_on_how_long_sequences_are() -> None:
    def cost(length: int) -> int:
        limits = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=100_000, max_model_len=10_000)
        scheduler = Scheduler(limits, BlockManager(20_000, 4))
        for index in range(8):
            scheduler.add(Request(str(index), [index] * length, SamplingParams(seed=0), max_model_len=10_000))

        def step() -> None:
            plan = scheduler.schedule()
            assert plan is not None
            scheduler.update(plan, [1] * len(plan.samplers))

        step()
        return _count_calls(step)

    assert cost(8001) == cost(9)


@pytest.mark.parametrize(("block_size", "bound"), [(16, 0.06), (8, 0.04)])
def test_kv_slots_wasted_on_a_real_workload(block_size: int, bound: float) -> None:
    """W2's lengths, batch 64: allocated slots that hold nothing, averaged over steps.

    Reserving max_model_len for each request instead would leave over 90 % unused.
    """
    workload = json.loads((REPOSITORY / "benchmarks/workloads/W2.json").read_text())["requests"]
    longest = max(len(item["prompt"]) + item["max_tokens"] for item in workload)
    max_model_len = 2048
    assert longest < max_model_len
    blocks = BlockManager(64 * max_model_len // block_size + 1, block_size)
    limits = SchedulerConfig(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=max_model_len)
    scheduler = Scheduler(limits, blocks)
    for index, item in enumerate(workload):
        params = SamplingParams(max_tokens=item["max_tokens"], seed=0)
        scheduler.add(Request(str(index), item["prompt"], params, max_model_len=max_model_len))
    waste, reserved_waste = [], []
    while (plan := scheduler.schedule()) is not None:
        scheduler.update(plan, [1] * len(plan.samplers))
        stats = blocks.stats()
        waste.append(stats.kv_waste)
        reserved_waste.append(1 - stats.slots_filled / (scheduler.num_running * max_model_len))
        for sampler in plan.samplers:
            if sampler.sequence.num_output == sampler.sequence.request.max_tokens:
                scheduler.finish(sampler.sequence, "length")
    print(f"block_size={block_size}: {np.mean(waste):.2%} unused; reserved contiguously: {np.mean(reserved_waste):.2%}")
    assert np.mean(waste) < bound
    assert np.mean(reserved_waste) > 0.9
