"""Attention to pools that hold a part of every block: each part alone, and all of them merged by log-sum-exp."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from kernels.paged_cases import Shape

from pallas_kernels.paged_attention import cpu, paged_attention, paged_attention_metadata
from pallas_kernels.paged_attention.oracle import attend_rows, paged_attention_oracle

SHAPE = Shape(num_heads=4, num_kv_heads=2, head_dim=16, block_size=32, dtype="float32", blocks_per_row=12)
PARTS = 4
SLOTS = SHAPE.block_size // PARTS
QUERY_START = np.array([0, 1, 2, 22, 29, 29], np.int32)
LENGTHS = np.array([3, 300, 150, 7, 0], np.int32)  # the first and the fourth have no key in the last parts
OPTIONS = [{}, {"window": 9}, {"chunk": 24}, {"soft_cap": 3.0}, {"slopes": True}]


def step(part: int | None) -> dict:
    """Operands for all slots of every block, or for those of one part, with NaN wherever nothing lies."""
    rng = np.random.default_rng(3)
    blocks = 1 + len(LENGTHS) * SHAPE.blocks_per_row
    tables = (1 + rng.permutation(blocks - 1)).reshape(len(LENGTHS), -1).astype(np.int32)
    pools = rng.normal(size=(2, blocks, SHAPE.num_kv_heads, SHAPE.block_size, SHAPE.head_dim)).astype(np.float32)
    for table, length in zip(tables, LENGTHS, strict=True):
        positions = np.arange(length, table.size * SHAPE.block_size)
        pools[:, table[positions // SHAPE.block_size], :, positions % SHAPE.block_size] = np.nan
    pools[:, 0] = np.nan
    slots, where = SHAPE.block_size, {}
    if part is not None:
        slots, where = SLOTS, {"stride": SHAPE.block_size, "offset": jnp.int32(part * SLOTS)}
        pools = pools[..., part * SLOTS:(part + 1) * SLOTS, :]
    metadata = paged_attention_metadata(*map(jnp.array, (tables, QUERY_START, LENGTHS)), 32, slots, **where)
    q = rng.normal(size=(32, SHAPE.num_heads, SHAPE.head_dim)).astype(np.float32)
    return {"q": jnp.array(q), "k_pool": jnp.array(pools[0]), "v_pool": jnp.array(pools[1]), "metadata": metadata}


def numbers(options: dict) -> dict:
    slopes = np.linspace(0.1, 0.4, SHAPE.num_heads, dtype=np.float32) if options.get("slopes") else None
    return {"scale": 0.25, "alibi_slopes": slopes, **{name: v for name, v in options.items() if name != "slopes"}}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_pieces_are_the_oracles_and_merge_to_the_whole(options: dict) -> None:
    found = []
    for part in range(PARTS):
        operands, arguments = step(part), numbers(options)
        values, lse = paged_attention(**operands, **arguments, return_lse=True, implementation="xla")
        expected, expected_lse = paged_attention_oracle(**operands, **arguments, return_lse=True)
        np.testing.assert_allclose(values, expected, atol=2e-6)
        np.testing.assert_allclose(lse, expected_lse, atol=2e-6)
        found.append((np.asarray(values, np.float64), np.asarray(lse, np.float64)))
    lse = np.stack([each for _, each in found])
    assert (lse[-1, :1] == -np.inf).all()  # a row of 3 tokens
    assert (found[-1][0][:1] == 0).all()
    whole = step(None)
    metadata = whole["metadata"]
    expected, expected_lse = attend_rows(
        *(np.asarray(whole[name]) for name in ("q", "k_pool", "v_pool")), *map(np.asarray, (
            metadata.tables, metadata.query_start, metadata.lengths)), **numbers(options))
    real = slice(0, QUERY_START[-1])
    total = np.logaddexp.reduce(lse[:, real])
    merged = sum(np.exp(each - total)[..., None] * values[real]
                 for each, (values, _) in zip(lse[:, real], found, strict=True))
    np.testing.assert_allclose(total, expected_lse[real], atol=2e-6)
    np.testing.assert_allclose(merged, expected[real], atol=2e-6)


def test_a_query_without_keys_sees_its_sink_alone() -> None:
    sinks = jnp.linspace(-1, 1, SHAPE.num_heads, dtype=jnp.float32)
    operands = step(PARTS - 1)
    for attend in (paged_attention_oracle, paged_attention):
        values, lse = attend(**operands, scale=0.25, sinks=sinks, return_lse=True)
        np.testing.assert_array_equal(values[0], 0)
        np.testing.assert_allclose(lse[0], sinks, atol=1e-6)


def test_blocks_that_lie_side_by_side_keep_their_bits() -> None:
    whole = step(None)
    apart = dataclasses.replace(whole["metadata"], stride=SHAPE.block_size, offset=jnp.int32(0))
    first, second = (paged_attention(**{**whole, "metadata": each}, scale=0.25, implementation="xla")
                     for each in (whole["metadata"], apart))
    np.testing.assert_array_equal(first, second)


def test_the_native_kernel_leaves_strides_to_others() -> None:
    operands = step(0)
    half = {name: operands[name].astype(jnp.bfloat16) for name in ("q", "k_pool", "v_pool")}
    assert cpu.unsupported(**half, metadata=step(None)["metadata"]) is None
    assert cpu.unsupported(**half, metadata=operands["metadata"]) == "it knows no stride of blocks"


@pytest.mark.parametrize(("where", "message"), [
    ({"stride": 16}, "together"), ({"offset": jnp.int32(0)}, "together"),
    ({"stride": 4, "offset": jnp.int32(0)}, "stride=4 must be at least block_size=8"),
    ({"stride": 16, "offset": jnp.zeros(1, jnp.int32)}, "scalar"), ({"stride": 16, "offset": jnp.float32(0)}, "int32")])
def test_faults_are_named(where: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paged_attention_metadata(jnp.zeros((1, 1), jnp.int32), jnp.zeros(2, jnp.int32), jnp.zeros(1, jnp.int32), 8, 8,
                                 **where)
