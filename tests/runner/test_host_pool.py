"""Host storage: what was read from the device comes back to the bit, wherever it is put, and nothing else changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from mixes import mixed_requests
from support import TINY, pool_bytes, run, tiny_engine

from jaxllm.engine.plan import StepDraft
from jaxllm.errors import CapacityError, ParameterError
from jaxllm.kv_cache import KVEntry, KVGroup, KVSpec
from jaxllm.kv_cache.pool import read_blocks, write_blocks
from jaxllm.runner.host_pool import HostPool
from jaxllm.runner.keys import SWAP_BLOCKS, Key
from pallas_kernels import Int8Pool

SPEC = KVSpec({"k": KVEntry(2, 3, jnp.bfloat16), "v": KVEntry(1, 5, jnp.int8)}, (KVGroup((0, 1)),))


def _noise(count, seed=0):
    generator = np.random.default_rng(seed)
    return [{"k": generator.standard_normal((count, 2, 4, 3)).astype(ml_dtypes.bfloat16),
             "v": Int8Pool(generator.integers(-127, 128, (count, 1, 4, 5)).astype(np.int8),
                           generator.standard_normal((count, 1, 4)).astype(np.float32))} for _ in range(2)]


def _bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_blocks_come_back_to_the_bit_in_any_order_with_zeros_behind_them():
    pool, values = HostPool(SPEC, 9, 4), _noise(4)
    pool.write(np.array([7, 0, 3]), values)
    found = pool.read(np.array([3, 7]), 5)
    assert _bits(found) == _bits(
        jax.tree.map(lambda leaf: np.concatenate([leaf[[2, 0]], np.zeros_like(leaf[:3])]), values))


def test_what_is_read_is_a_copy():
    pool = HostPool(SPEC, 2, 4)
    pool.write(np.array([1]), _noise(1))
    found = pool.read(np.array([1]), 1)
    before = _bits(found)
    pool.write(np.array([1]), _noise(1, seed=1))
    assert _bits(found) == before


def test_no_memory_is_taken_before_the_first_block_is_written():
    pool = HostPool(SPEC, 2, 4)
    assert not pool.allocated
    pool.write(np.array([0]), _noise(1))
    assert pool.allocated


def test_reading_and_writing_device_blocks_touches_no_others():
    cache = jax.tree.map(jnp.asarray, _noise(6))
    blocks = np.array([4, 2, 0, 0], np.int32)
    values = read_blocks(cache, blocks)
    assert _bits(values) == _bits(jax.tree.map(lambda leaf: leaf[blocks], cache))
    moved = write_blocks(jax.tree.map(jnp.zeros_like, cache), np.array([5, 1, 0, 0], np.int32), values)
    expected = jax.tree.map(jnp.zeros_like, cache)
    expected = jax.tree.map(lambda empty, leaf: empty.at[5].set(leaf[4]).at[1].set(leaf[2]), expected, cache)
    assert _bits(jax.tree.map(lambda leaf: leaf[1:], moved)) == _bits(jax.tree.map(lambda leaf: leaf[1:], expected))


def _plan(swap_out=(), swap_in=()):
    moves = [np.array(each, np.int32).reshape(-1, 2) for each in (swap_out, swap_in)]
    return StepDraft(budget=0).plan(np.zeros((0, 4), np.int32), np.zeros((0, 2), np.int32), *moves)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_runner_moves_more_blocks_than_one_call_takes_out_first_and_then_in(dtype):
    count = 2 * SWAP_BLOCKS + 3
    engine = tiny_engine(dtype, kv_cache_bytes=pool_bytes(2 * count, dtype=dtype),
                         swap_bytes=pool_bytes(count + 5, dtype=dtype))
    runner = engine._runner
    key = jax.random.key(0)
    runner.cache = jax.tree.map(lambda leaf: jax.random.normal(key, leaf.shape, leaf.dtype), runner.cache)
    before = jax.device_get(runner.cache)
    there = [(block, (3 * block) % (count + 5)) for block in range(1, count + 1)]
    back = [(host, 2 * count + 1 - block) for block, host in there]
    runner._swap(_plan(there, back))
    after = jax.device_get(runner.cache)
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(new[1 + count:], old[1:count + 1][::-1])
        np.testing.assert_array_equal(new[1:count + 1], old[1:count + 1])


def test_no_trace_after_the_warm_up_while_blocks_are_swapped():
    engine = tiny_engine(kv_cache_bytes=pool_bytes(17), swap_bytes=pool_bytes(40), max_num_batched_tokens=32)
    engine.compile_all()
    programs = engine._runner.programs
    traces, executables = dict(programs.traces), programs.num_executables
    assert executables == len(programs.all_keys())
    assert str(executables) in programs.formula()
    assert {"read_blocks", "write_blocks"} <= set(traces)
    for seed in range(3000, 3004):
        run(engine, mixed_requests(8, seed))
    assert engine.stats().num_swapped_in > 0
    assert dict(programs.traces) == traces
    assert programs.num_executables == executables


def test_without_swap_space_there_are_no_such_programs():
    engine = tiny_engine()
    assert not {Key("read_blocks"), Key("write_blocks")} & set(engine._runner.programs.all_keys())
    assert engine.config.num_swap_blocks == 0


def test_swap_space_is_counted_in_whole_blocks_over_all_layers():
    block = pool_bytes(0)
    assert block == 8 * 2 * TINY["num_layers"] * TINY["num_kv_heads"] * TINY["head_dim"] * 4
    assert tiny_engine(swap_bytes=5 * block + block // 2).config.num_swap_blocks == 5


@pytest.mark.parametrize(("swap_bytes", "error"), [
    (-1, ParameterError), (1.5, ParameterError), (pool_bytes(0) - 1, ParameterError), (1 << 60, CapacityError)])
def test_swap_space_that_cannot_be_is_refused_by_name(swap_bytes, error):
    with pytest.raises(error, match="swap_space"):
        tiny_engine(swap_bytes=swap_bytes)
