"""The scheduler: limits, the order of requests, who is preempted, what fails and is reset."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
import pytest
from engine.fake_engine import FakeEngine, Sizes
from engine.scheduled import admitted, names, prompt, rows

from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.limits import Policy, SchedulerConfig
from jaxllm.engine.request import Request, Sequence, SequenceStatus
from jaxllm.engine.scheduler import Scheduler
from jaxllm.errors import CapacityError, ParameterError
from jaxllm.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("max_num_batched_tokens", 1.5), ("max_model_len", 1),
     ("max_num_seqs", True), ("policy", "sjf")],
)  # fmt: skip
def test_limits_are_checked(name: str, value: object) -> None:
    good: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": 2}
    with pytest.raises(ParameterError, match=name):
        SchedulerConfig(**{**good, name: value})


def test_a_pool_too_small_for_one_sequence_is_refused_naming_the_numbers_to_change() -> None:
    limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=8, max_model_len=41)
    message = "max_model_len=41 needs 22 .* has 20: raise num_blocks to 23, .* at most 40"
    with pytest.raises(CapacityError, match=message):
        Scheduler(limits, BlockManager(21, 4, windows=(None, None)))
    Scheduler(limits, BlockManager(23, 4, windows=(None, None)))


def test_an_id_in_use_and_a_request_made_for_a_longer_context_are_refused() -> None:
    engine = FakeEngine(Sizes())
    engine.request(prompt(3))
    with pytest.raises(ParameterError, match="request_id='0'"):
        engine.scheduler.add(Request("0", [1], SamplingParams(), max_model_len=40))
    with pytest.raises(ParameterError, match=r"max_tokens=98 .* 38, .*max_model_len=40"):
        engine.scheduler.add(Request("1", [1, 2], SamplingParams(), max_model_len=100))
    engine.finish_all()
    engine.scheduler.add(Request("0", [1], SamplingParams(), max_model_len=40))


def test_running_sequences_share_the_budget_first_then_waiting_ones_get_chunks() -> None:
    engine = FakeEngine(Sizes(num_blocks=60, max_num_batched_tokens=8))
    for length in (5, 10, 4):
        engine.request(prompt(length), ignore_eos=True)
    plans = [engine.step() for _ in range(4)]
    assert [rows(plan) for plan in plans] == [
        {"0.0": (0, 5), "1.0": (0, 3)},
        {"0.0": (5, 1), "1.0": (3, 7)},
        {"0.0": (6, 1), "1.0": (10, 1), "2.0": (0, 4)},
        {"0.0": (7, 1), "1.0": (11, 1), "2.0": (4, 1)},
    ]
    assert [names([sampler.sequence for sampler in plan.samplers]) for plan in plans if plan] == [
        ["0.0"], ["0.0", "1.0"], ["0.0", "1.0", "2.0"], ["0.0", "1.0", "2.0"],
    ]  # fmt: skip
    assert [names(plan.admitted) for plan in plans if plan] == [["0.0", "1.0"], [], ["2.0"], []]
    engine.finish_all()


def test_a_plan_lists_the_tokens_and_positions_of_its_rows() -> None:
    engine = FakeEngine(Sizes(num_blocks=60, max_num_batched_tokens=8))
    first, second = engine.request([3, 2, 1], ignore_eos=True), engine.request(prompt(10))
    engine.step()
    plan = engine.schedule()
    assert plan is not None
    assert plan.token_ids().tolist() == [first.sequences[0].last_token, *second.prompt_token_ids[5:].tolist()]
    assert plan.positions().tolist() == [3, 5, 6, 7, 8, 9]
    assert {array.dtype for array in (plan.slot, plan.start, plan.count, plan.token_ids(), plan.positions(),
                                      plan.table_updates, plan.block_copies)} == {np.dtype(np.int32)}  # fmt: skip


def test_the_lowest_free_slots_are_given_and_come_back() -> None:
    engine = FakeEngine(Sizes(num_blocks=60, max_num_seqs=3))
    requests = [engine.request(prompt(2, first), ignore_eos=True) for first in range(4)]
    engine.step()
    assert [request.sequences[0].slot for request in requests] == [0, 1, 2, None]
    assert (engine.scheduler.num_running, engine.scheduler.num_waiting) == (3, 1)
    engine.scheduler.finish(requests[1].sequences[0], "stop", "text")
    assert requests[1].sequences[0].stop_reason == "text"
    engine.step()
    assert [request.sequences[0].slot for request in requests] == [0, None, 2, 1]


@pytest.mark.parametrize(("policy", "order"), [("fcfs", "0123"), ("priority", "2031")])
def test_policies_order_the_waiting(policy: Policy, order: str) -> None:
    engine = FakeEngine(Sizes(num_blocks=60, max_num_seqs=1, policy=policy))
    for priority in (0, 5, -1, 0):
        engine.request(prompt(2), priority=priority, max_tokens=1)
    served = []
    while (plan := engine.step()) is not None:
        served += [sequence.request.request_id for sequence in plan.sequences]
    assert served == list(order)


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "2.0"), ("priority", "1.0")])
def test_the_last_in_policy_order_is_preempted_and_resumes_with_the_same_answer(policy: Policy, victim: str) -> None:
    engine = FakeEngine(Sizes(num_blocks=13, max_num_seqs=3, max_num_batched_tokens=30, policy=policy))
    for priority in (0, 2, 1):
        engine.request(prompt(7, priority), ignore_eos=True, priority=priority, max_tokens=25)
    preempted: list[Sequence] = []
    while not preempted:
        plan = engine.step()
        assert plan is not None, "nothing was preempted"
        preempted = plan.preempted
    assert names(preempted) == [victim]
    (sequence,) = preempted
    assert (sequence.status, sequence.slot, sequence.num_computed) == (SequenceStatus.PREEMPTED, None, 0)
    assert sequence.request.metrics.num_preemptions == sequence.num_preemptions == 1
    engine.finish_all()


def test_the_last_in_order_waits_for_blocks_and_keeps_those_it_has() -> None:
    engine = FakeEngine(Sizes(num_blocks=11, max_num_seqs=2, max_num_batched_tokens=64, enable_prefix_caching=False))
    early = engine.request(prompt(15), ignore_eos=True, max_tokens=5).sequences[0]
    late = engine.request(prompt(18), ignore_eos=True, max_tokens=20).sequences[0]
    waited = 0
    while not early.finished:
        plan = engine.step()
        assert plan is not None
        assert not plan.preempted
        waited += late not in plan.sequences and late.status is SequenceStatus.RUNNING
    assert waited > 0
    engine.finish_all()


def test_a_higher_priority_that_waits_preempts_nobody() -> None:
    engine = FakeEngine(Sizes(max_num_seqs=1, policy="priority"))
    running = engine.request(prompt(3), ignore_eos=True, max_tokens=5, priority=9)
    engine.step()
    engine.request(prompt(3), priority=0)
    while not running.finished:
        plan = engine.step()
        assert plan is not None
        assert not plan.preempted
    engine.finish_all()


def test_a_prompt_is_admitted_only_with_room_for_all_of_it_and_growth_of_the_running() -> None:
    engine = FakeEngine(Sizes(num_blocks=12, max_num_seqs=4, max_num_batched_tokens=4))
    engine.request(prompt(4), ignore_eos=True)
    engine.step()
    # From now on it holds 2 blocks of 11, and 1 is kept for it: 8 are left.
    engine.request(prompt(33, 1), max_tokens=1)  # 9 blocks
    assert admitted(engine) == []
    engine.scheduler.abort("1")
    engine.request(prompt(32, 1), max_tokens=1)  # 8 blocks
    assert admitted(engine) == ["2.0"]


def test_only_the_first_of_several_ends_of_a_sequence_counts() -> None:
    engine = FakeEngine(Sizes())
    sequence = engine.request(prompt(3), ignore_eos=True).sequences[0]
    engine.step()
    engine.scheduler.finish(sequence, "stop", 3)
    engine.scheduler.finish(sequence, "abort")
    assert (sequence.finish_reason, sequence.stop_reason) == ("stop", 3)
    engine.scheduler.check_integrity()


def test_dropping_a_step_that_failed_ends_its_requests_and_no_others() -> None:
    engine = FakeEngine(Sizes(num_blocks=60, max_num_seqs=4, max_num_batched_tokens=6))
    stays = engine.request(prompt(2), ignore_eos=True)
    engine.request(prompt(3, 1), n=2)
    waits = engine.request(prompt(8, 2))
    plan = engine.schedule()
    assert plan is not None
    assert set(names(plan.sequences)) == {"0.0", "1.0", "2.0"}
    engine.complete(plan)
    engine.scheduler.abort("2")
    waits = engine.request(prompt(30))
    plan = engine.schedule()
    assert plan is not None
    engine.scheduler.drop(plan)
    assert {sequence.finish_reason for sequence in stays.sequences} == {"error"}
    again = engine.request(prompt(12, 1))
    engine.finish_all()
    assert waits.finished
    assert again.sequences[0].finish_reason in ("stop", "length")


def test_after_an_interrupt_in_the_middle_of_scheduling_a_reset_leaves_a_working_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine(Sizes())
    for first in range(4):
        engine.request(prompt(9, first), n=2)
    engine.step()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(heapq, "heappop", interrupt)
        engine.scheduler.abort("0")
        with pytest.raises(KeyboardInterrupt):
            engine.scheduler.schedule()
    ended = engine.scheduler.reset()
    assert [request.request_id for request in ended] == ["1", "2", "3"]
    assert all(sequence.finish_reason == "abort" for request in ended for sequence in request.sequences)
    engine.scheduler.check_integrity()
    engine.request(prompt(9))
    engine.finish_all()


def test_as_many_tokens_as_samplers_are_expected() -> None:
    engine = FakeEngine(Sizes())
    engine.request(prompt(3))
    plan = engine.scheduler.schedule()
    assert plan is not None
    with pytest.raises(ValueError, match="2 tokens for 1 samplers"):
        engine.scheduler.update(plan, [1, 2])


def test_a_repeated_prompt_is_computed_from_its_last_full_block() -> None:
    engine = FakeEngine(Sizes(num_blocks=60, max_num_batched_tokens=64))
    for index in range(3):
        request = engine.request(prompt(12), max_tokens=1, prompt_logprobs=0 if index == 2 else None)
        plan = engine.step()
        assert rows(plan) == {f"{index}.0": [(0, 12), (8, 4), (0, 12)][index]}
        assert request.num_cached_tokens == [0, 8, 0][index]
