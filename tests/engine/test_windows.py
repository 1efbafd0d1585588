"""Groups of layers with windows: which blocks are held, given back and found, with blocks of 4 tokens."""

from __future__ import annotations

import numpy as np
import pytest
from engine.fake_engine import FakeEngine, Sizes
from engine.test_block_manager import admit, compute, run, sequence

from jaxllm.engine.block_groups import BlockGroups
from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.integrity import IntegrityError
from jaxllm.engine.request import Sequence
from jaxllm.errors import ParameterError

FULL_AND_WINDOW = (None, 6)


def held(blocks: BlockManager, owner: Sequence) -> list[list[int]]:
    """For each group the columns that are held."""
    return [[column for column, block in enumerate(table) if block] for table in blocks.tables(owner)]


def advance(blocks: BlockManager, runner: Sequence, end: int) -> None:
    """Compute up to ``end`` tokens in one step."""
    assert blocks.grow(runner, end)
    runner.num_computed = end
    blocks.publish(runner, end)
    blocks.trim(runner)
    blocks.check_integrity()


def take_all_but(blocks: BlockManager, count: int) -> list[int]:
    """Allocate free blocks, evicting the oldest, until so many are left."""
    return [blocks._pool.allocate() for _ in range(blocks.num_free_blocks - count)]


@pytest.mark.parametrize("windows", [(), (0,), (None, -1)])
def test_windows_are_checked(windows: tuple[int | None, ...]) -> None:
    with pytest.raises(ParameterError, match="windows"):
        BlockManager(9, 4, windows)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 6, 8, 9, 13])
def test_no_more_columns_than_said_are_needed_and_no_fewer_would_do(window: int, size: int) -> None:
    groups = BlockGroups((window,), size)
    most = 0
    for length in range(1, 60):
        # The columns that the newest token sees, or one at the beginning of its block would.
        block = (length - 1) // size * size
        needed = {position // size for position in range(max(block - window + 1, 0), length)}
        assert min(needed) == groups.first_column(0, length - 1)
        most = max(most, len(needed))
        assert groups.most_columns(0, length) == most


@pytest.mark.parametrize("windows", [(None,), (6,), (None, 6), (None, 3, 9)])
def test_the_longest_length_is_where_blocks_run_out(windows: tuple[int | None, ...]) -> None:
    groups = BlockGroups(windows, 4)
    for num_blocks in range(-1, 30):
        longest = groups.longest(num_blocks, 50)
        assert longest == max((length for length in range(1, 51) if groups.blocks_for(length) <= num_blocks), default=0)


def test_what_the_window_has_left_is_given_back_in_chunks_and_in_decode() -> None:
    blocks = BlockManager(40, 4, FULL_AND_WINDOW)
    runner = sequence(range(30))
    blocks.admit(runner, blocks.find_prefix(runner))
    advance(blocks, runner, 20)
    # Token 20 sees 15 to 20.
    assert held(blocks, runner) == [[0, 1, 2, 3, 4], [3, 4]]
    assert blocks.stats().cached_blocks == 3
    most = 0
    for end in range(21, 31):
        advance(blocks, runner, end)
        first = (end // 4 * 4 - 5) // 4
        assert held(blocks, runner)[1] == list(range(first, -(-end // 4)))
        most = max(most, len(held(blocks, runner)[1]))
    assert most <= blocks.groups.most_columns(1, 30) == 3


def test_without_prefix_caching_what_is_given_back_is_blank() -> None:
    blocks = BlockManager(40, 4, FULL_AND_WINDOW, enable_prefix_caching=False)
    runner = sequence(range(30))
    admit(blocks, runner)
    advance(blocks, runner, 20)
    assert blocks.stats().cached_blocks == 0
    # Those of all 30 tokens, of which group 1 has given back three.
    assert blocks.stats().free_blocks == 39 - 8 - 5


def test_a_hit_takes_window_blocks_of_the_last_window_only() -> None:
    blocks = BlockManager(40, 4, FULL_AND_WINDOW)
    run(blocks, range(30))
    follower = sequence([*range(22), 99])
    assert admit(blocks, follower) == 20
    assert held(blocks, follower) == [[0, 1, 2, 3, 4, 5], [3, 4, 5]]
    blocks.release(follower)
    blocks.check_integrity()


def test_a_hit_needs_no_window_block_before_its_last_window() -> None:
    blocks = BlockManager(40, 4, FULL_AND_WINDOW)
    runner = sequence(range(30))
    blocks.admit(runner, blocks.find_prefix(runner))
    for end in (8, 16, 24, 30):
        advance(blocks, runner, end)
    stats = blocks.stats()
    assert stats.cached_blocks == 5
    take_all_but(blocks, 0)  # what the window has left is evicted
    again = blocks.find_prefix(sequence([*range(30), 99]))
    assert [len(table) for table in again] == [7, 7]
    assert [[column for column, block in enumerate(table) if block] for table in again] == [[*range(7)], [5, 6]]
    # No other length can be gone on from.
    assert blocks.find_prefix(sequence([*range(21), 99])) == [[], []]


@pytest.mark.parametrize(("column", "found"), [(0, 7), (4, 7), (5, 5), (6, 6)])
def test_eviction_of_a_window_block_shortens_the_hit_to_where_a_window_is_whole(column: int, found: int) -> None:
    blocks = BlockManager(40, 4, FULL_AND_WINDOW)
    run(blocks, range(30))
    prefix = blocks.find_prefix(sequence(range(30)))
    hashes = blocks._chain_of(sequence(range(30)))
    hashes.extend(np.arange(30))
    victim = blocks._pool.find((1, hashes.hashes[column]))
    assert victim is not None
    blocks._pool._cached.move_to_end(victim, last=False)
    while blocks._pool.find((1, hashes.hashes[column])) is not None:
        blocks._pool.allocate()
    assert [len(table) for table in prefix] == [7, 7]
    assert [len(table) for table in blocks.find_prefix(sequence(range(30)))] == [found, found]


def test_eviction_of_a_full_attention_block_shortens_the_hit_to_before_it() -> None:
    groups = BlockGroups(FULL_AND_WINDOW, 4)
    assert groups.longest_prefix(7, lambda group, column: (group, column) != (0, 3)) == 3
    assert groups.longest_prefix(7, lambda group, column: (group, column) not in {(0, 5), (1, 4)}) == 4
    assert groups.longest_prefix(7, lambda group, column: (group, column) not in {(0, 5), (1, 2), (1, 4)}) == 2


@pytest.mark.parametrize("windows", [(6,), (None, 6), (None, 3, 9), (2, 5)])
def test_the_longest_prefix_is_that_of_trying_all(windows: tuple[int | None, ...]) -> None:
    groups, rng = BlockGroups(windows, 4), np.random.default_rng(0)
    for _ in range(300):
        has = rng.random((len(windows), 9)) < rng.choice([0.5, 0.8, 0.95])
        whole = [columns for columns in range(10) if all(
            has[group, groups.first_column(group, columns * 4):columns].all() for group in range(len(windows)))]
        assert groups.longest_prefix(9, lambda group, column: bool(has[group, column])) == max(whole)  # noqa: B023


def test_a_whole_pool_of_the_least_size_runs_a_long_sequence_in_smaller_chunks() -> None:
    groups = BlockGroups(FULL_AND_WINDOW, 4)
    engine = FakeEngine(Sizes(windows=FULL_AND_WINDOW, num_blocks=groups.blocks_for(40) + 1, max_num_seqs=2,
                              max_num_batched_tokens=32))
    counts = []
    engine.request([1, 2, 3] * 11, max_tokens=7, ignore_eos=True)
    while (plan := engine.step()) is not None:
        counts.append(plan.num_tokens)
    assert max(counts) < 32
    assert max(counts) > 4
    assert engine.num_preemptions == 0
    engine.finish_all()
    # Nor does a prefix that is found stand in its own way.
    engine.request(engine.requests[0].sequences[0].token_ids[:39].tolist(), max_tokens=1)
    engine.finish_all()
    assert engine.requests[1].num_cached_tokens == 36


def test_full_attention_alone_keeps_its_chunks() -> None:
    blocks = BlockManager(6, 4)
    runner = sequence(range(30))
    blocks.admit(runner, blocks.find_prefix(runner))
    assert blocks.reach(runner, 30) == 30


def test_a_fork_gives_back_its_own_share() -> None:
    blocks = BlockManager(40, 4, FULL_AND_WINDOW)
    parent = sequence(range(12), n=2)
    child = parent.request.sequences[1]
    admit(blocks, parent)
    compute(blocks, parent)
    blocks.fork(parent, child)
    blocks.trim(parent)
    assert held(blocks, parent)[1] == [1, 2]
    assert held(blocks, child)[1] == [0, 1, 2]
    blocks.trim(child)
    assert held(blocks, child)[1] == [1, 2]
    blocks.check_integrity()
    for owner in (parent, child):
        blocks.release(owner)
    blocks.check_integrity()
    assert blocks.num_free_blocks == 39


def test_host_memory_keeps_what_the_windows_see_and_no_more() -> None:
    blocks = BlockManager(40, 4, FULL_AND_WINDOW, num_swap_blocks=20, enable_prefix_caching=False)
    runner = sequence(range(30))
    admit(blocks, runner)
    advance(blocks, runner, 26)
    assert blocks.swap_out(runner)
    # Columns 0 to 6, and those of 19 to 25.
    assert len(blocks.swap.take_moves()[0]) == blocks.swap.num_used == 7 + 3
    blocks.release(runner)
    runner.num_computed = 0
    admit(blocks, runner)
    assert runner.num_computed == 26
    assert held(blocks, runner) == [[*range(8)], [4, 5, 6, 7]]
    assert len(blocks.swap.take_moves()[1]) == 7 + 3
    blocks.check_integrity()


def test_what_the_cache_still_has_is_not_copied_back() -> None:
    blocks = BlockManager(40, 4, FULL_AND_WINDOW, num_swap_blocks=20)
    runner = sequence(range(30))
    admit(blocks, runner)
    advance(blocks, runner, 26)
    assert blocks.swap_out(runner)
    blocks.swap.take_moves()
    blocks.release(runner)
    runner.num_computed = 0
    admit(blocks, runner)
    # Six columns are found; the last, partial one was never published.
    assert len(blocks.swap.take_moves()[1]) == 2
    assert held(blocks, runner) == [[*range(8)], [4, 5, 6, 7]]
    advance(blocks, runner, 30)


def test_preemption_swapping_forks_and_guesses_give_the_answers_of_requests_run_alone() -> None:
    sizes = Sizes(windows=(None, 2, 13), num_blocks=36, num_swap_blocks=12, max_num_seqs=8, max_num_batched_tokens=16,
                  guesses=True)
    engine = FakeEngine(sizes)
    for number in range(12):
        engine.request([number % 3, 1, 2] * 4 + [0], n=1 + number % 3, max_tokens=24, ignore_eos=True)
        engine.step()
    engine.finish_all()  # which compares
    for count in (engine.num_preemptions, engine.num_swapped_in, engine.num_forks, engine.num_copies, engine.num_right,
                  engine.num_guessed - engine.num_right):
        assert count > 0


def _hold_what_was_given_back(blocks: BlockManager, victim: Sequence) -> None:
    blocks._holdings[victim].tables[1][0] = blocks._pool.allocate()


def _give_back_too_much(blocks: BlockManager, victim: Sequence) -> None:
    holding = blocks._holdings[victim]
    blocks._pool.release(holding.tables[1][3])
    holding.tables[1][3], holding.firsts[1] = 0, 4


def _lack_a_full_block(blocks: BlockManager, victim: Sequence) -> None:
    table = blocks._holdings[victim].tables[0]
    blocks._pool.release(table[0])
    table[0] = 0


@pytest.mark.parametrize("damage", [_hold_what_was_given_back, _give_back_too_much, _lack_a_full_block])
def test_check_integrity_sees_damage_to_windows(damage) -> None:
    blocks = BlockManager(40, 4, FULL_AND_WINDOW)
    victim = sequence(range(30))
    admit(blocks, victim)
    advance(blocks, victim, 20)
    damage(blocks, victim)
    with pytest.raises(IntegrityError):
        blocks.check_integrity()
