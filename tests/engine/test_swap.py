"""Swapping to host memory: whose blocks are kept, when they are free again, and that nothing stale comes back."""

from __future__ import annotations

import numpy as np
import pytest
from engine.fake_engine import FakeEngine, Sizes

from jaxllm.engine.integrity import IntegrityError
from jaxllm.engine.request import Request, SequenceStatus
from jaxllm.engine.swap import SwapSpace
from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams

PUBLISHED = {1: (0, b"first"), 2: (0, b"second")}
TIGHT = {"num_blocks": 12, "max_num_batched_tokens": 64, "num_swap_blocks": 20}


def _sequence(length=9):
    return Request("r", range(length), SamplingParams(), max_model_len=100).sequences[0]


def _keep(space, tables, num_computed=8, sequence=None):
    sequence = sequence or _sequence()
    kept = space.keep(sequence, num_computed, tables, PUBLISHED.get)
    space.check_integrity()
    return sequence if kept else None


def _preempted(**sizes):
    """An engine at the step that preempts the second of two requests, that plan (not run yet), and the victim."""
    engine = FakeEngine(Sizes(**{**TIGHT, **sizes}))
    for token, length in ((0, 14), (1, 8)):
        engine.request([token] * length, max_tokens=24, ignore_eos=True)
    victim = engine.requests[1].sequences[0]
    while not (plan := engine.schedule()).preempted:
        engine.complete(plan)
    assert plan.preempted == [victim]
    return engine, plan, victim


def _next_start(engine, sequence):
    """The first token that the sequence computes when it runs again, and how many blocks are copied in for it."""
    while sequence not in (plan := engine.schedule()).sequences:
        engine.complete(plan)
    engine.complete(plan)
    return int(plan.start[plan.sequences.index(sequence)]), len(plan.swap_in)


def test_a_negative_number_of_host_blocks_is_refused():
    with pytest.raises(ParameterError, match="num_swap_blocks=-1"):
        SwapSpace(-1)


def test_a_copy_is_kept_whole_or_not_at_all():
    space = SwapSpace(3)
    assert _keep(space, [[5, 6]])
    assert not _keep(space, [[7, 8]])
    assert space.num_used == 2
    assert space.take_moves()[0][:, 0].tolist() == [5, 6]
    assert _keep(space, [[7]])


def test_where_nothing_is_computed_nothing_is_kept():
    assert not _keep(SwapSpace(3), [[]], num_computed=0)


def test_published_content_is_kept_once_for_all_who_need_it_until_the_last_is_gone():
    space = SwapSpace(4)
    first, second = _keep(space, [[1, 2]]), _keep(space, [[1, 7]])
    assert space.num_used == 3
    assert space.take_moves()[0][:, 0].tolist() == [1, 2, 7]
    copies = space.holders()
    assert copies[first].tables[0][0] == copies[second].tables[0][0]
    space.discard(first)
    space.check_integrity()
    assert space.num_used == 2
    assert _keep(space, [[1, 8]])
    space.take(second)
    assert space.num_used == 2
    assert space.take_moves()[0][:, 0].tolist() == [8]


def test_a_host_block_that_a_plan_reads_is_not_written_by_the_same_plan():
    space = SwapSpace(2)
    first = _keep(space, [[5, 6]])
    space.take_moves()
    copy = space.take(first)
    space.load(zip(copy.tables[0], [3, 4], strict=True))
    space.check_integrity()
    assert not _keep(space, [[7, 8]])
    out, moved_in = space.take_moves()
    assert (out.shape, moved_in.tolist()) == ((0, 2), [[copy.tables[0][0], 3], [copy.tables[0][1], 4]])
    assert _keep(space, [[7, 8]])


def test_a_copy_given_up_before_its_plan_leaves_no_move():
    space = SwapSpace(3)
    first, second = _keep(space, [[5, 2]]), _keep(space, [[6, 2]])
    space.discard(first)
    space.check_integrity()
    assert _keep(space, [[7]])
    assert space.take_moves()[0][:, 0].tolist() == [2, 6, 7]
    assert second in space.holders()


def test_all_copies_in_a_host_block_that_was_not_written_are_given_up():
    space = SwapSpace(8)
    first, second, third = _keep(space, [[1, 5]]), _keep(space, [[1, 6]]), _keep(space, [[7, 8]])
    block = space.holders()[first].tables[0][0]
    space.invalidate([block])
    space.check_integrity()
    assert set(space.holders()) == {third}
    assert second not in space.holders()
    assert space.num_used == 2


def _lose_a_block(space, copy):
    space._free.pop()


def _free_a_used_block(space, copy):
    space._free.append(copy.tables[0][0])


def _free_twice(space, copy):
    space._free[0] = space._free[1]


def _count_wrongly(space, copy):
    space._references[copy.tables[0][0]] += 1


def _forget_a_key(space, copy):
    space._key_of.clear()


def _repeat_a_block(space, copy):
    copy.tables[0][1] = copy.tables[0][0]


def _leave_tables_uneven(space, copy):
    copy.tables[0].append(space._free[0])


@pytest.mark.parametrize("damage", [
    _lose_a_block, _free_a_used_block, _free_twice, _count_wrongly, _forget_a_key, _repeat_a_block,
    _leave_tables_uneven])
def test_check_integrity_sees_damage(damage):
    space = SwapSpace(9)
    sequence = _keep(space, [[1, 5], [2, 6]])
    damage(space, space.holders()[sequence])
    with pytest.raises(IntegrityError):
        space.check_integrity()


@pytest.mark.parametrize("caching", [True, False])
def test_a_preempted_sequence_goes_on_where_it_was_with_its_partial_last_block(caching):
    engine, plan, victim = _preempted(enable_prefix_caching=caching)
    computed = 18
    assert victim.num_tokens == computed + 1
    blocks = -(-computed // engine.sizes.block_size)
    assert len(plan.swap_out) == engine.blocks.swap.num_used == blocks
    assert (victim.status, victim.num_computed) == (SequenceStatus.PREEMPTED, 0)
    engine.complete(plan)
    start, moved_in = _next_start(engine, victim)
    assert start == computed
    assert 0 < moved_in <= blocks
    assert engine.blocks.swap.num_used == 0
    engine.finish_all()
    # Nothing was computed twice.
    assert engine.num_computed == sum(len(each.prompt_token_ids) + each.max_tokens - 1 for each in engine.requests)


def test_what_the_prefix_cache_still_holds_is_not_copied_back():
    engine, plan, victim = _preempted()
    engine.complete(plan)
    # The first request ends now, before it takes the victim's full blocks.
    engine.scheduler.finish(engine.requests[0].sequences[0], "abort")
    assert _next_start(engine, victim) == (18, 1)
    engine.finish_all()


@pytest.mark.parametrize("num_swap_blocks", [0, 4])
def test_without_room_for_all_of_it_a_sequence_is_computed_anew(num_swap_blocks):
    engine, plan, victim = _preempted(num_swap_blocks=num_swap_blocks, enable_prefix_caching=False)
    assert len(plan.swap_out) == 0
    engine.complete(plan)
    assert _next_start(engine, victim) == (0, 0)
    engine.finish_all()


def test_an_abort_while_swapped_out_frees_the_host_blocks():
    engine, plan, victim = _preempted()
    engine.scheduler.abort(victim.request.request_id)
    assert engine.blocks.swap.num_used == 0
    engine.complete(plan)
    engine.finish_all()


def test_samples_swapped_out_keep_their_common_prompt_once_and_end_one_by_one():
    engine = FakeEngine(Sizes(**{**TIGHT, "num_blocks": 17, "num_swap_blocks": 30}))
    engine.request([0] * 8, max_tokens=32, ignore_eos=True)
    samples = engine.request([1] * 16, n=3, max_tokens=20, ignore_eos=True).sequences
    swap = engine.blocks.swap
    while sum(sample in swap.holders() for sample in samples) < 2:
        engine.step()
    kept = [swap.holders()[sample].tables[0] for sample in samples if sample in swap.holders()]
    assert kept[0][:4] == kept[1][:4]
    assert swap.num_used == len(set(kept[0]) | set(kept[1])) == len(kept[0]) + len(kept[1]) - 4
    swapped = next(sample for sample in samples if sample in swap.holders())
    engine.scheduler.finish(swapped, "abort")
    engine.scheduler.check_integrity()
    assert swap.num_used == len(kept[1])
    engine.finish_all()


@pytest.mark.parametrize("weights_changed", [True, False])
@pytest.mark.parametrize("caching", [True, False])
def test_after_a_reset_what_was_swapped_out_is_computed_anew(weights_changed, caching):
    engine, plan, victim = _preempted(enable_prefix_caching=caching)
    engine.complete(plan)
    engine.forget_prefixes(weights_changed=weights_changed)
    assert engine.blocks.swap.num_used == 0
    assert _next_start(engine, victim) == (0, 0)
    engine.finish_all()


@pytest.mark.parametrize("caching", [True, False])
def test_what_was_computed_before_a_change_of_weights_is_not_swapped_out_after_it(caching):
    engine = FakeEngine(Sizes(**TIGHT, enable_prefix_caching=caching))
    for first in (0, 1):
        engine.request([first] * 14, max_tokens=24, ignore_eos=True)
    engine.step()
    engine.forget_prefixes(weights_changed=True)
    while not (plan := engine.step()).preempted:
        pass
    assert len(plan.swap_out) == 0
    assert _next_start(engine, plan.preempted[0]) == (0, 0)
    engine.finish_all()


def test_a_victim_of_a_step_that_failed_is_computed_anew():
    engine, plan, victim = _preempted(enable_prefix_caching=False)
    engine.scheduler.drop(plan)
    engine.scheduler.check_integrity()
    assert engine.blocks.swap.num_used == 0
    assert not victim.finished
    assert _next_start(engine, victim) == (0, 0)
    engine.finish_all()


def test_a_reset_of_the_scheduler_frees_all_host_blocks():
    engine, _, _ = _preempted()
    engine.scheduler.reset()
    engine.scheduler.check_integrity()
    assert engine.blocks.swap.num_used == 0
    engine.request([1, 2], max_tokens=4)
    plan = engine.schedule()
    assert len(plan.swap_out) == len(plan.swap_in) == 0


def test_a_prompt_whose_logprobs_are_wanted_goes_on_where_it_was():
    engine = FakeEngine(Sizes(num_blocks=22, num_swap_blocks=20, max_num_batched_tokens=3))
    for token in (0, 1):
        engine.request([token] * 14, max_tokens=26, ignore_eos=True)
    last = engine.request([2] * 30, prompt_logprobs=0, max_tokens=8, ignore_eos=True).sequences[0]
    computed = 0
    while not (plan := engine.step()).preempted:
        computed = last.num_computed
    assert plan.preempted == [last]
    assert last.wants_prompt_logprobs
    assert computed > 8
    assert _next_start(engine, last) == (computed, -(-computed // engine.sizes.block_size))
    engine.finish_all()


def test_moves_are_two_columns_of_int32():
    for moves in SwapSpace(2).take_moves():
        assert (moves.shape, moves.dtype) == ((0, 2), np.dtype(np.int32))
