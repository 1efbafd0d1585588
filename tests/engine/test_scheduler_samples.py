"""Several samples of one prompt: forked when it is complete, whoever waits or ends before."""

from __future__ import annotations

import pytest
from engine.fake_engine import FakeEngine, Sizes
from engine.scheduled import names, prompt, rows

from jaxllm.engine.request import SequenceStatus


def test_samples_are_forked_in_the_step_that_completes_the_prompt_and_sample_from_its_row() -> None:
    engine = FakeEngine(Sizes(num_blocks=60, max_num_seqs=6, max_num_batched_tokens=8))
    engine.request(prompt(10), n=3, seed=1)
    first, second, third = engine.step(), engine.step(), engine.step()
    assert first is not None
    assert second is not None
    assert (names(first.admitted), first.samplers) == (["0.0"], [])
    assert rows(second) == {"0.0": (8, 2)}
    assert names(second.admitted) == ["0.1", "0.2"]
    assert [(sampler.slot, sampler.row) for sampler in second.samplers] == [(0, 0), (1, 0), (2, 0)]
    assert rows(third) == {f"0.{index}": (10, 1) for index in range(3)}
    assert third is not None
    assert len(third.block_copies) == 2
    engine.finish_all()
    outputs = {tuple(sequence.output_token_ids.tolist()) for sequence in engine.requests[0].sequences}
    assert len(outputs) == 3


def test_no_more_samples_are_forked_than_have_a_block_each_to_grow_into() -> None:
    engine = FakeEngine(Sizes(num_blocks=11, max_num_seqs=8, max_num_batched_tokens=64))
    engine.request(prompt(18), n=7, ignore_eos=True, max_tokens=2)
    plan = engine.step()
    assert plan is not None
    # Of 10 blocks the prompt takes 5: one for each of 5 samples is left.
    assert names(plan.admitted) == [f"0.{index}" for index in range(5)]
    plan = engine.step()
    assert plan is not None
    assert not plan.preempted
    engine.finish_all()


def test_samples_that_find_no_slot_wait_and_then_find_the_prompt_in_the_cache() -> None:
    engine = FakeEngine(Sizes(num_blocks=60, max_num_seqs=2, max_num_batched_tokens=64))
    request = engine.request(prompt(10), n=4, ignore_eos=True, max_tokens=3)
    plan = engine.step()
    assert plan is not None
    assert names(plan.admitted) == ["0.0", "0.1"]
    assert engine.scheduler.num_waiting == 2
    engine.finish_all()
    assert [sequence.num_cached_tokens for sequence in request.sequences] == [0, 0, 8, 8]
    assert request.num_cached_tokens == 0


def test_a_parent_preempted_before_its_prompt_is_complete_forks_after_it_returns() -> None:
    engine = FakeEngine(Sizes(num_blocks=11, max_num_seqs=4, max_num_batched_tokens=3, enable_prefix_caching=False))
    engine.request(prompt(8), ignore_eos=True, max_tokens=30)
    for _ in range(9):
        engine.step()
    request = engine.request(prompt(20), n=3)
    preempted = 0
    while not request.finished:
        plan = engine.step()
        assert plan is not None
        if request.sequences[0] in plan.preempted and not request.forked:
            preempted += 1
            assert all(sample.status is SequenceStatus.WAITING for sample in request.sequences[1:])
    assert preempted > 0
    engine.finish_all()


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_aborting_a_request_ends_all_its_samples_wherever_they_are(steps: int) -> None:
    engine = FakeEngine(Sizes(max_num_seqs=3, max_num_batched_tokens=5))
    request = engine.request(prompt(9), n=5, ignore_eos=True)
    for _ in range(steps):
        engine.step()
    assert engine.scheduler.abort("0")
    engine.scheduler.check_integrity()
    assert {sequence.finish_reason for sequence in request.sequences} == {"abort"}
    assert not engine.scheduler.has_unfinished
    assert engine.schedule() is None
    assert not engine.scheduler.abort("0")
    engine.finish_all()


def test_samples_outlive_a_sample_0_that_ends_before_the_prompt_is_complete() -> None:
    engine = FakeEngine(Sizes(max_num_batched_tokens=5))
    request = engine.request(prompt(9), n=3)
    engine.step()
    engine.scheduler.finish(request.sequences[0], "abort")
    engine.finish_all()
    assert [sequence.finish_reason == "abort" for sequence in request.sequences] == [True, False, False]
