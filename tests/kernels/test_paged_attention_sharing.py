"""Rows that read the same physical blocks are computed together: found in the tables, once each, with the same bits."""

from __future__ import annotations

import copy

import jax.numpy as jnp
import numpy as np
import pytest
from kernels import paged_cases as pc

from pallas_kernels.paged_attention.shared_groups import find_shared_groups
from pallas_kernels.paged_attention.tiles import SHARED_TILE

GROUP = 256
BLOCK = 32
PER_GROUP = GROUP // BLOCK


def pieces_of(tables, lengths):
    """(group, rows) of each piece, and how many groups of each row are in pieces."""
    shared = find_shared_groups(jnp.asarray(tables, jnp.int32), jnp.asarray(lengths, jnp.int32), BLOCK)
    found = []
    for piece in range(int(shared.num_pieces)):
        group, rows = shared.members(jnp.int32(piece))
        found.append((int(group), sorted(row for row in rows.tolist() if row < len(lengths))))
    return found, shared.leading.tolist()


def table(*groups):
    """A row's blocks from a letter per group: the same letter, the same blocks."""
    return np.concatenate([ord(letter) * 100 + np.arange(PER_GROUP) for letter in groups])


def test_rows_are_together_as_far_as_their_tables_agree():
    tables = [table(*letters) for letters in ("ABDX", "EFGX", "ABHX", "ACIX", "EJKX", "LMNX")]
    found, leading = pieces_of(tables, [3 * GROUP + 9] * 6)
    assert found == [(0, [0, 2, 3]), (0, [1, 4]), (1, [0, 2])]
    assert leading == [2, 1, 2, 1, 1, 0]


def test_groups_that_differ_in_one_block_or_are_not_full_are_not_shared():
    first, second = table("A", "B", "C"), table("A", "B", "C")
    second[PER_GROUP + 3] += 50
    assert pieces_of([first, second], [3 * GROUP, 3 * GROUP]) == ([(0, [0, 1])], [1, 1])
    assert pieces_of([first, first], [2 * GROUP + 5, 2 * GROUP - 1]) == ([(0, [0, 1])], [1, 1])
    assert pieces_of([first, first], [GROUP - 1, GROUP - 1]) == ([], [0, 0])
    assert pieces_of([first, first], [3 * GROUP, 0]) == ([], [0, 0])


def test_tables_too_short_for_a_group_share_nothing():
    assert pieces_of(np.ones((3, PER_GROUP - 1)), [(PER_GROUP - 1) * BLOCK] * 3) == ([], [0, 0, 0])


def test_a_row_joins_the_pieces_of_a_group_only_after_those_of_all_groups_before_it():
    tables = [table("A", "Z"), table("B", "Z"), table("A", "Y")]
    found, leading = pieces_of(tables, [2 * GROUP] * 3)
    assert found == [(0, [0, 2]), (1, [0])]  # row 1 has the same blocks there, but is not that far yet
    assert leading == [2, 0, 1]


def test_many_sharers_are_cut_into_pieces():
    count = 2 * SHARED_TILE + 3
    found, leading = pieces_of([table("A")] * count, [GROUP] * count)
    assert [len(rows) for _, rows in found] == [SHARED_TILE, SHARED_TILE, 3]
    assert sorted(row for _, rows in found for row in rows) == list(range(count))
    assert leading == [1] * count


OPTIONS = {
    "plain": {},
    "window": {"window": 300},
    "soft cap": {"soft_cap": 3.0},
    "sinks": {"with_sinks": True},
}


@pytest.mark.parametrize(
    ("option", "dtype", "heads"),
    [
        pytest.param(
            option,
            dtype,
            heads,
            marks=() if (option, heads) == ("plain", (6, 2, 64)) and dtype != "float16" else pytest.mark.sweep,
        )
        for option in OPTIONS
        for dtype in ("bfloat16", "float32", "float16")
        for heads in ((6, 2, 64), (8, 1, 80), (2, 2, 128))
    ],
)
def test_bits_are_those_of_rows_with_blocks_of_their_own(option, dtype, heads):
    rng = np.random.default_rng(0)
    options = dict(OPTIONS[option])
    shape = pc.Shape(*heads, BLOCK, dtype, blocks_per_row=3 * PER_GROUP)
    if options.pop("with_sinks", False):
        options["sinks"] = rng.standard_normal(shape.num_heads) * 2
    num_rows = SHARED_TILE + 3
    counts = [1] * (num_rows - 1) + [2]
    lengths = [2 * GROUP + BLOCK + int(extra) for extra in rng.integers(1, 150, num_rows)]
    kv = pc.contexts(rng, shape, lengths)
    shared = pc.build(rng, shape, counts, lengths, 32, kv=kv, shared_blocks=2 * PER_GROUP + 1)
    apart = pc.build(rng, shape, counts, lengths, 32, kv=copy.deepcopy(kv))
    apart.q = shared.q
    for got, expected in zip(pc.attend(shared, "xla", **options), pc.attend(apart, "xla", **options), strict=True):
        np.testing.assert_array_equal(got, expected)
