from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.integrity import IntegrityError
from jaxllm.engine.request import Request, Sequence
from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams

SLOTS = itertools.count()


def sequence(prompt: Iterable[int], **params: Any) -> Sequence:
    request = Request("r", prompt, SamplingParams(**params), max_model_len=1000)
    for sample in request.sequences:
        sample.slot = next(SLOTS)
    return request.sequences[0]


def admit(blocks: BlockManager, newcomer: Sequence) -> int:
    """Admit a sequence and give it blocks for all its tokens; the number found in the prefix cache."""
    blocks.admit(newcomer, blocks.find_prefix(newcomer))
    found = newcomer.num_computed
    assert blocks.grow(newcomer, newcomer.num_tokens)
    return found


def compute(blocks: BlockManager, *sequences: Sequence) -> None:
    """Pretend that all tokens were computed."""
    for computed in sequences:
        computed.num_computed = computed.num_tokens
        blocks.publish(computed, computed.num_computed)
    blocks.check_integrity()


def run(blocks: BlockManager, prompt: Iterable[int], **params: Any) -> int:
    """Run a prompt from admission to release; the number of tokens found in the prefix cache."""
    runner = sequence(prompt, **params)
    found = admit(blocks, runner)
    compute(blocks, runner)
    blocks.release(runner)
    blocks.check_integrity()
    return found


@pytest.mark.parametrize(("name", "value"), [("num_blocks", 1), ("block_size", 0), ("windows", ())])
def test_sizes_are_checked(name: str, value: int) -> None:
    with pytest.raises(ParameterError, match=re.escape(f"{name}={value}")):
        BlockManager(**dict[str, Any]({"num_blocks": 5, "block_size": 4, name: value}))


@pytest.mark.parametrize(("length", "found"), [(1, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8)])
def test_a_hit_covers_full_blocks_and_at_most_all_tokens_but_the_last(length: int, found: int) -> None:
    blocks = BlockManager(20, 4)
    assert run(blocks, range(length)) == 0
    assert run(blocks, range(length)) == found


def test_only_the_common_prefix_is_found() -> None:
    blocks = BlockManager(20, 4)
    run(blocks, range(16))
    assert run(blocks, [*range(8), 99, *range(9, 16)]) == 8
    assert run(blocks, [99, *range(1, 16)]) == 0
    assert run(blocks, [*range(4, 16)]) == 0


def test_scheduled_blocks_are_no_hits_until_they_are_computed() -> None:
    blocks = BlockManager(20, 4)
    first, second = sequence(range(12)), sequence(range(12))
    admit(blocks, first)
    assert blocks.find_prefix(second) == [[]]
    first.num_computed = 7
    blocks.publish(first, first.num_computed)
    assert blocks.find_prefix(second) == [list(blocks.tables(first)[0][:1])]
    first.num_computed = 12
    blocks.publish(first, first.num_computed)
    assert admit(blocks, second) == 8
    blocks.check_integrity()


def test_generated_tokens_are_found_too_as_in_the_next_turn_of_a_chat() -> None:
    blocks = BlockManager(20, 4)
    first = sequence(range(6))
    admit(blocks, first)
    for token in range(6, 12):
        compute(blocks, first)
        first.append(token)
        assert blocks.grow(first, first.num_tokens)
    blocks.release(first)
    assert run(blocks, range(15)) == 8


def test_salts_share_nothing_with_each_other_or_with_none() -> None:
    blocks = BlockManager(40, 4)
    salts = [None, "", "a", "b"]
    assert [run(blocks, range(9), cache_salt=salt) for salt in salts] == [0, 0, 0, 0]
    assert [run(blocks, range(9), cache_salt=salt) for salt in salts] == [8, 8, 8, 8]


def test_a_request_for_prompt_logprobs_reads_no_prefix_but_publishes_its_own() -> None:
    blocks = BlockManager(20, 4)
    assert run(blocks, range(9), prompt_logprobs=1) == 0
    assert run(blocks, range(9), prompt_logprobs=1) == 0
    assert run(blocks, range(9)) == 8
    assert blocks.stats().prefix_queries == 9


def test_without_prefix_caching_nothing_is_found_or_kept() -> None:
    blocks = BlockManager(20, 4, enable_prefix_caching=False)
    assert [run(blocks, range(9)) for _ in range(2)] == [0, 0]
    stats = blocks.stats()
    assert (stats.cached_blocks, stats.prefix_queries) == (0, 0)


@pytest.mark.parametrize("forget", [BlockManager.reset_prefix_cache, BlockManager.bump_weight_version])
def test_after_a_reset_nothing_older_is_found_not_even_what_running_sequences_go_on_to_compute(
    forget: Callable[[BlockManager], None],
) -> None:
    blocks = BlockManager(40, 4)
    running = sequence(range(8))
    admit(blocks, running)
    compute(blocks, running)
    forget(blocks)
    blocks.check_integrity()
    assert run(blocks, range(8)) == 0
    for token in range(8, 14):
        running.append(token)
        assert blocks.grow(running, running.num_tokens)
        compute(blocks, running)
    assert run(blocks, range(14)) == 8  # what ran after the reset; not the third block, which the running one filled
    blocks.release(running)
    assert run(blocks, range(14)) == 12


@pytest.mark.parametrize("forget", [BlockManager.reset_prefix_cache, BlockManager.bump_weight_version])
def test_a_block_begun_before_a_reset_is_not_found_after_it_even_if_its_owner_never_looked_anything_up(
    forget: Callable[[BlockManager], None],
) -> None:
    blocks = BlockManager(20, 4)
    running = sequence(range(6), prompt_logprobs=0)
    admit(blocks, running)
    running.num_computed = 2
    blocks.publish(running, running.num_computed)
    forget(blocks)
    compute(blocks, running)
    assert run(blocks, range(6)) == 0


def test_weight_versions_have_different_hashes() -> None:
    blocks = BlockManager(20, 4)
    before, after = sequence(range(9)), sequence(range(9))
    blocks.find_prefix(before)
    blocks.bump_weight_version()
    blocks.find_prefix(after)
    assert before.hash_chain is not None
    assert after.hash_chain is not None
    assert not set(before.hash_chain.hashes) & set(after.hash_chain.hashes)


def test_the_tail_of_a_request_is_evicted_before_its_head_and_older_requests_first() -> None:
    blocks = BlockManager(7, 4)
    run(blocks, range(12))
    run(blocks, range(100, 112))

    def held() -> tuple[int, int]:
        old, new = sequence([*range(12), 0]), sequence([*range(100, 112), 0])
        return len(blocks.find_prefix(old)[0]), len(blocks.find_prefix(new)[0])

    newcomer = sequence(range(50, 54))
    admit(blocks, newcomer)
    seen = [held()]
    for length in range(8, 28, 4):
        assert blocks.grow(newcomer, length)
        seen.append(held())
    assert seen == [(2, 3), (1, 3), (0, 3), (0, 2), (0, 1), (0, 0)]
    assert not blocks.grow(newcomer, 28)


def test_a_hit_makes_a_prefix_recently_used() -> None:
    blocks = BlockManager(7, 4)
    run(blocks, range(12))
    run(blocks, range(100, 112))
    run(blocks, range(12))
    run(blocks, range(50, 62))
    assert len(blocks.find_prefix(sequence([*range(12), 0]))[0]) == 3
    assert len(blocks.find_prefix(sequence([*range(100, 112), 0]))[0]) == 0


def test_growing_beyond_the_free_blocks_changes_nothing() -> None:
    blocks = BlockManager(5, 4)
    one = sequence(range(8))
    admit(blocks, one)
    blocks.changes.take()
    tables = blocks.tables(one)
    assert not blocks.grow(one, 17)
    assert blocks.tables(one) == tables
    assert [len(changes) for changes in blocks.changes.take()] == [0, 0]
    assert blocks.grow(one, 16)


def test_forks_share_all_blocks_and_the_first_to_write_into_a_partial_one_gets_a_copy() -> None:
    blocks = BlockManager(10, 4)
    parent = sequence(range(6), n=3)
    _, child, other = parent.request.sequences
    admit(blocks, parent)
    compute(blocks, parent)
    blocks.fork(parent, child)
    blocks.fork(parent, other)
    for fork in (child, other):
        fork.num_computed = 6
        assert blocks.tables(fork) == blocks.tables(parent)
    assert blocks.stats().used_blocks == 2
    blocks.changes.take()

    before = blocks.tables(parent)[0]
    assert blocks.grow(parent, 7)
    assert blocks.grow(child, 7)
    assert blocks.grow(other, 7)
    updates, copies = blocks.changes.take()
    moved = [blocks.tables(fork)[0][1] for fork in (parent, child)]
    assert copies.tolist() == [[before[1], moved[0]], [before[1], moved[1]]]
    assert updates.tolist() == [[0, parent.slot, 1, moved[0]], [0, child.slot, 1, moved[1]]]
    assert blocks.tables(other)[0] == before  # the last owner writes in place
    assert {table[0] for fork in (parent, child, other) for table in blocks.tables(fork)} == {before[0]}
    blocks.check_integrity()


def test_forks_of_full_blocks_need_no_copies() -> None:
    blocks = BlockManager(10, 4)
    parent = sequence(range(8), n=2)
    child = parent.request.sequences[1]
    admit(blocks, parent)
    compute(blocks, parent)
    blocks.fork(parent, child)
    assert blocks.grow(parent, 9)
    assert blocks.grow(child, 9)
    assert len(blocks.changes.take()[1]) == 0
    blocks.check_integrity()


def test_table_updates_name_group_slot_column_and_block_of_every_change() -> None:
    blocks = BlockManager(20, 4, windows=(None, None))
    first, second = sequence(range(6)), sequence(range(5))
    expected = np.zeros((2, 50, 4), int)
    device = expected.copy()
    for grown, end in ((first, 6), (second, 5), (first, 13), (second, 9)):
        if grown.num_computed == 0:
            grown.slot = [first, second].index(grown)
            admit(blocks, grown)
        compute_to = min(end, grown.num_tokens)
        grown.num_computed = compute_to
        assert blocks.grow(grown, end)
        updates, _ = blocks.changes.take()
        group, slot, column, block = updates.T
        device[group, slot, column] = block
        for group_, table in enumerate(blocks.tables(grown)):
            expected[group_, grown.slot, : len(table)] = table
        assert (device == expected).all()
    assert updates.dtype == np.int32
    nonzero = device[device > 0]
    assert len(set(nonzero.tolist())) == len(nonzero)


def test_a_prefix_counts_only_where_every_group_still_has_it() -> None:
    blocks = BlockManager(9, 4, windows=(None, None))

    def evict_one() -> None:
        taken = [blocks._pool.allocate() for _ in range(3)]  # two blank blocks, and the least recently used
        for block in taken:
            blocks._pool.release(block)

    def found() -> list[int]:
        return [len(table) for table in blocks.find_prefix(sequence(range(13)))]

    run(blocks, range(12))
    assert found() == [3, 3]
    evict_one()  # the last column of group 0
    assert found() == [2, 2]
    run(blocks, range(12))  # group 0 has it again, more recently used than that of group 1
    assert found() == [3, 3]
    evict_one()
    assert blocks._pool.num_cached == 5
    assert found() == [2, 2]


def test_free_blocks_to_admit_counts_cached_hits_but_not_shared_ones() -> None:
    blocks = BlockManager(20, 4)
    newcomer = sequence(range(13))
    assert blocks.free_blocks_to_admit(blocks.find_prefix(newcomer), 13) == 4
    run(blocks, range(8))
    assert blocks.free_blocks_to_admit(blocks.find_prefix(newcomer), 13) == 4
    running = sequence(range(9))
    admit(blocks, running)
    assert blocks.free_blocks_to_admit(blocks.find_prefix(newcomer), 13) == 2


def test_stats_count_blocks_filled_slots_and_hits() -> None:
    blocks = BlockManager(20, 4)
    run(blocks, range(9))
    one = sequence(range(10))
    admit(blocks, one)
    stats = blocks.stats()
    assert (stats.total_blocks, stats.used_blocks, stats.free_blocks, stats.cached_blocks) == (19, 3, 16, 0)
    assert (stats.slots_allocated, stats.slots_filled) == (12, 8)
    compute(blocks, one)
    assert blocks.stats().kv_waste == pytest.approx(2 / 12)
    assert (stats.prefix_queries, stats.prefix_hits) == (19, 8)
    assert stats.hit_rate == pytest.approx(8 / 19)


def test_shared_slots_are_counted_once() -> None:
    blocks = BlockManager(20, 4)
    parent = sequence(range(6), n=2)
    child = parent.request.sequences[1]
    admit(blocks, parent)
    compute(blocks, parent)
    blocks.fork(parent, child)
    child.num_computed = 6
    stats = blocks.stats()
    assert (stats.slots_allocated, stats.slots_filled) == (8, 6)


def test_an_idle_manager_wastes_nothing() -> None:
    stats = BlockManager(20, 4).stats()
    assert (stats.kv_waste, stats.hit_rate) == (0.0, 0.0)


def test_clear_restores_a_manager_that_was_left_in_disorder() -> None:
    blocks = BlockManager(6, 4)
    run(blocks, range(9))
    admit(blocks, sequence(range(9)))
    blocks._pool._blank.clear()
    blocks.clear()
    blocks.check_integrity()
    assert blocks.num_free_blocks == 5
    assert not blocks.holders()
    assert run(blocks, range(9)) == 0
    assert run(blocks, range(9)) == 8


def _drop_a_column(blocks: BlockManager, victim: Sequence) -> None:
    blocks._holdings[victim].tables[0].pop()


def _repeat_a_block(blocks: BlockManager, victim: Sequence) -> None:
    table = blocks._holdings[victim].tables[0]
    table[1] = table[0]


def _rewind(blocks: BlockManager, victim: Sequence) -> None:
    victim.num_computed = 3


def _publish_too_early(blocks: BlockManager, victim: Sequence) -> None:
    blocks._pool.publish(blocks.tables(victim)[0][2], (0, b"x"))


def _swap_content(blocks: BlockManager, victim: Sequence) -> None:
    table = blocks._holdings[victim].tables[0]
    table[0], table[1] = table[1], table[0]


@pytest.mark.parametrize("damage", [_drop_a_column, _repeat_a_block, _rewind, _publish_too_early, _swap_content])
def test_check_integrity_sees_damage(damage: Callable[[BlockManager, Sequence], None]) -> None:
    blocks = BlockManager(20, 4)
    victim = sequence(range(10))
    admit(blocks, victim)
    compute(blocks, victim)
    damage(blocks, victim)
    with pytest.raises(IntegrityError):
        blocks.check_integrity()
