"""Costs that can be read off the compiled program or counted, without a clock."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.kv_write import kv_write
from pallas_kernels.paged_attention import paged_attention, paged_attention_metadata
from pallas_kernels.paged_attention.tiles import cut_into_tiles

NUM_BLOCKS, NUM_ROWS, PER_ROW = 777, 4, 64


def compiled(num_tokens: int, dtype: jnp.dtype) -> jax.stages.Compiled:
    """Two layers of KV write and attention, with their pools donated."""

    def step(pools, q, k, v, slots, tables, query_start, lengths):
        metadata = paged_attention_metadata(tables, query_start, lengths, num_tokens, 16)
        written = []
        for k_pool, v_pool in pools:
            k_pool, v_pool = kv_write(k_pool, v_pool, k, v, slots)
            q = paged_attention(q, k_pool, v_pool, metadata, scale=0.125)
            written.append((k_pool, v_pool))
        return written, q

    def shape(*sizes, dtype=dtype):
        return jax.ShapeDtypeStruct(sizes, dtype)

    pool, token = shape(NUM_BLOCKS, 2, 16, 64), shape(num_tokens, 2, 64)
    indices = [(num_tokens,), (NUM_ROWS, PER_ROW), (NUM_ROWS + 1,), (NUM_ROWS,)]
    return (
        jax.jit(step, donate_argnums=0)
        .lower(
            [(pool, pool)] * 2, shape(num_tokens, 6, 64), token, token, *(shape(*i, dtype=jnp.int32) for i in indices)
        )
        .compile()
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, pytest.param(jnp.float32, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("num_tokens", [8, pytest.param(256, marks=pytest.mark.sweep)])
def test_pools_are_neither_copied_nor_converted(num_tokens, dtype):
    text = compiled(num_tokens, dtype).as_text()
    pool_sized = re.findall(rf"= \w+\[(?:{NUM_BLOCKS}|{NUM_BLOCKS * 2}),\S* (\w[\w-]*)\(", text)
    assert "parameter" in pool_sized
    assert not set(pool_sized) & {"copy", "convert", "transpose", "copy-start"}
    assert text.count("may-alias") + text.count("must-alias") >= 4


def test_temporary_memory_does_not_grow_with_the_longest_possible_context():
    # A score matrix over all positions would be 4 x 256 tokens x 6 heads x 1024 positions x 4 bytes = 24 MiB.
    assert compiled(256, jnp.bfloat16).memory_analysis().temp_size_in_bytes < 6 * 2**20


def test_work_is_cut_by_real_tokens_not_by_rows_or_padding():
    counts = np.array([1, 0, 130, 1, 0, 2])
    query_start = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)])
    lengths = jnp.array([5, 0, 200, 9, 0, 2], jnp.int32)
    for tile in [cut_into_tiles(query_start, lengths, num_tokens) for num_tokens in (256, 2048)]:
        assert int(tile.num_decodes) == 2
        assert tile.decode_lengths[:3].tolist() == [9, 5, 0]  # longest first
        assert int(tile.num_prefill_tiles) == 4  # 130 = 64 + 64 + 2, and one for the row of 2
        assert tile.prefill_rows[:4].tolist() == [2, 2, 2, 5]
        assert tile.prefill_tokens[:4].tolist() == [1, 65, 129, 132]
