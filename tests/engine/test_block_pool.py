from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from jaxllm.engine.block_pool import NULL_BLOCK, BlockPool
from jaxllm.engine.integrity import IntegrityError
from jaxllm.errors import ParameterError


def test_every_block_but_the_null_block_is_given_out_once() -> None:
    pool = BlockPool(9)
    blocks = [pool.allocate() for _ in range(pool.num_free)]
    assert sorted(blocks) == list(range(1, 9))
    assert NULL_BLOCK not in blocks
    assert (pool.num_free, pool.num_owned) == (0, 8)


def test_a_pool_of_only_the_null_block_is_refused() -> None:
    with pytest.raises(ParameterError, match="num_blocks=1"):
        BlockPool(1)


def test_blank_blocks_go_before_cached_ones_and_those_least_recently_used_first() -> None:
    pool = BlockPool(6)
    first, second, third, unpublished, untouched = (pool.allocate() for _ in range(5))
    for block in (first, second, third):
        pool.publish(block, (0, bytes([block])))
    for block in (second, unpublished, first, untouched, third):
        pool.release(block)
    # A use makes a cached block the most recent.
    pool.acquire(second)
    pool.release(second)
    assert pool.num_cached == 3
    assert {pool.allocate(), pool.allocate()} == {unpublished, untouched}
    assert [pool.allocate() for _ in range(3)] == [first, third, second]
    assert pool.find((0, bytes([first]))) is None


def test_a_cached_block_is_found_until_evicted_and_an_owned_one_while_it_is_owned() -> None:
    pool = BlockPool(3)
    block = pool.allocate()
    pool.publish(block, (0, b"x"))
    assert pool.find((0, b"x")) == block
    pool.release(block)
    assert pool.find((0, b"x")) == block
    pool.acquire(block)
    assert pool.allocate() != block
    assert pool.num_free == 0
    assert pool.find((0, b"x")) == block


def test_groups_do_not_find_each_others_blocks() -> None:
    pool = BlockPool(3)
    pool.publish(pool.allocate(), (0, b"x"))
    assert pool.find((1, b"x")) is None


def test_the_first_block_of_some_content_stays_the_one_found() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(), pool.allocate()
    pool.publish(first, (0, b"x"))
    pool.publish(second, (0, b"x"))
    pool.publish(first, (0, b"y"))
    assert pool.find((0, b"x")) == first
    assert pool.find((0, b"y")) is None
    pool.release(second)
    assert pool.num_cached == 0
    pool.check_integrity(Counter({first: 1}))


def test_forgetting_unpublishes_owned_and_cached_blocks() -> None:
    pool = BlockPool(4)
    owned, cached = pool.allocate(), pool.allocate()
    pool.publish(owned, (0, b"x"))
    pool.publish(cached, (0, b"y"))
    pool.release(cached)
    pool.forget()
    assert pool.find((0, b"x")) is pool.find((0, b"y")) is None
    assert (pool.num_cached, pool.num_free, pool.num_owned) == (0, 2, 1)
    pool.check_integrity(Counter({owned: 1}))


def _reference_lost(pool: BlockPool) -> None:
    pool._references[1] += 1


def _freed_twice(pool: BlockPool) -> None:
    pool._blank.append(pool._blank[0])


def _owned_and_blank(pool: BlockPool) -> None:
    pool._blank.append(1)


def _null_block_freed(pool: BlockPool) -> None:
    pool._blank.append(NULL_BLOCK)


def _block_lost(pool: BlockPool) -> None:
    pool._blank.pop()


def _key_dangles(pool: BlockPool) -> None:
    pool._block_of[(0, b"z")] = 1


def _cached_without_key(pool: BlockPool) -> None:
    pool._key_of[2] = None
    del pool._block_of[(0, b"y")]


_DAMAGES = [
    _reference_lost, _freed_twice, _owned_and_blank, _null_block_freed, _block_lost, _key_dangles, _cached_without_key,
]  # fmt: skip


@pytest.mark.parametrize("damage", _DAMAGES)
def test_check_integrity_sees_damage(damage: Callable[[BlockPool], None]) -> None:
    pool = BlockPool(5)
    owned, cached = pool.allocate(), pool.allocate()
    assert (owned, cached) == (1, 2)
    pool.publish(owned, (0, b"x"))
    pool.publish(cached, (0, b"y"))
    pool.release(cached)
    pool.check_integrity(Counter({owned: 1}))
    damage(pool)
    with pytest.raises(IntegrityError):
        pool.check_integrity(Counter({owned: 1}))
