"""The pool: shapes from the spec, and whole blocks copied at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from support import TINY

from jaxllm.kv_cache import kv_spec, unfilled_pool
from jaxllm.kv_cache.pool import copy_blocks
from jaxllm.models.config import DecoderConfig
from pallas_kernels import Int8Pool


def test_bytes_follow_the_shapes():
    spec = kv_spec(DecoderConfig(**TINY), jnp.bfloat16)
    pool = jax.jit(lambda: unfilled_pool(spec, 5, 16))()
    assert pool[0]["k"].shape == (5, TINY["num_kv_heads"], 16, TINY["head_dim"])
    assert len(pool) == TINY["num_layers"]
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(pool)) == 5 * spec.block_bytes(16)
    assert spec.bytes_per_token == 2 * TINY["num_layers"] * TINY["num_kv_heads"] * TINY["head_dim"] * 2


def test_bytes_have_a_scale_for_each_slot_and_head():
    spec = kv_spec(DecoderConfig(**TINY), jnp.int8)
    pool = jax.jit(lambda: unfilled_pool(spec, 5, 16))()
    slots = (5, TINY["num_kv_heads"], 16)
    for kept in pool[0].values():
        assert isinstance(kept, Int8Pool)
        assert (kept.values.shape, kept.values.dtype) == ((*slots, TINY["head_dim"]), jnp.int8)
        assert (kept.scales.shape, kept.scales.dtype) == (slots, jnp.float32)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(pool)) == 5 * spec.block_bytes(16)
    assert spec.bytes_per_token == 2 * TINY["num_layers"] * TINY["num_kv_heads"] * (TINY["head_dim"] + 4)


def test_copies_read_every_source_before_any_target_is_written():
    pool = [{"k": jnp.arange(4.0).reshape(4, 1, 1, 1)}]
    pairs = jnp.array([[1, 2], [2, 3], [0, 0]], jnp.int32)
    np.testing.assert_array_equal(copy_blocks(pool, pairs)[0]["k"].ravel(), [0, 1, 1, 2])
