"""The block table is a value: functions return new ones and leave the old alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.kv_cache import block_table
from jaxllm.kv_cache.block_table import BlockTable


@pytest.fixture
def table():
    return BlockTable(jnp.arange(1, 25, dtype=jnp.int32).reshape(2, 4, 3))


def test_update_sets_the_named_entries_and_skips_padding(table):
    before = np.array(table.blocks)
    changes = jnp.array([[0, 1, 2, 77], [1, 3, 0, 88], [0, -1, 0, 99], [-1, -1, -1, -1]], jnp.int32)
    after = np.array(block_table.update(table, changes).blocks)
    expected = before.copy()
    expected[0, 1, 2], expected[1, 3, 0] = 77, 88
    np.testing.assert_array_equal(after, expected)
    np.testing.assert_array_equal(table.blocks, before)


def test_append_fork_swap_and_clear(table):
    before = np.array(table.blocks)
    row, column, block = (jnp.int32(number) for number in (2, 1, 50))
    assert block_table.append(table, 1, row, column, block).blocks[1, 2, 1] == 50
    forked = np.array(block_table.fork(table, jnp.int32(0), jnp.int32(3)).blocks)
    np.testing.assert_array_equal(forked[:, 3], before[:, 0])
    swapped = np.array(block_table.swap_rows(table, jnp.int32(1), jnp.int32(2)).blocks)
    np.testing.assert_array_equal(swapped[:, [2, 1]], before[:, [1, 2]])
    cleared = np.array(block_table.clear(table, jnp.int32(1)).blocks)
    assert not cleared[:, 1].any()
    np.testing.assert_array_equal(cleared[:, [0, 2, 3]], before[:, [0, 2, 3]])
    np.testing.assert_array_equal(table.blocks, before)


def test_slots_follow_the_table_and_padding_goes_to_the_null_block(table):
    rows = jnp.array([0, 0, 3, 0], jnp.int32)
    positions = jnp.array([0, 5, 11, 2], jnp.int32)
    valid = jnp.array([True, True, True, False])
    found = block_table.slots(table, 0, rows, positions, valid, 4)
    blocks = np.array(table.blocks)[0]
    assert found.tolist() == [blocks[0, 0] * 4, blocks[0, 1] * 4 + 1, blocks[3, 2] * 4 + 3, 2]


def test_a_table_can_be_saved_and_restored_as_a_pytree(table):
    leaves, structure = jax.tree.flatten(table)
    restored = jax.tree.unflatten(structure, [np.array(leaf) for leaf in leaves])
    np.testing.assert_array_equal(restored.blocks, table.blocks)


def test_functions_trace_once_for_all_rows(table):
    traces = []

    @jax.jit
    def fork(table, source, target):
        traces.append(1)
        return block_table.fork(table, source, target)

    for target in range(1, 4):
        fork(table, jnp.int32(0), jnp.int32(target))
    assert len(traces) == 1
