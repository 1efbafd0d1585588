"""Pools in float8 (e4m3): each head quantized by itself, left to XLA by native kernels, refused mixed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import Float8Pool, Int8Pool, kv_write, paged_attention, paged_attention_metadata, registry
from pallas_kernels.scaled_pool import quantize_heads

BLOCKS, HEADS, SIZE, HEAD_DIM = 5, 3, 16, 64
FLOAT8 = jnp.float8_e4m3fn


def empty(kind=Float8Pool, dtype=FLOAT8):
    return kind(jnp.full((BLOCKS, HEADS, SIZE, HEAD_DIM), 7, dtype), jnp.full((BLOCKS, HEADS, SIZE), 9.0))


def step(tokens=70):
    """What goes into pools; from token 60 on padding."""
    rng = np.random.default_rng(0)
    kv = [jnp.asarray(rng.standard_normal((tokens, HEADS, HEAD_DIM)) * 3, jnp.bfloat16) for _ in range(2)]
    slots = np.concatenate([SIZE + rng.permutation(4 * SIZE)[:60], np.full(tokens - 60, 3)])
    return [*kv, jnp.asarray(slots, jnp.int32)]


def test_writing_equals_the_oracle_but_for_ties():
    arguments = [empty(), empty(), *step()]
    written = jax.jit(kv_write)(*arguments)
    for got, expected in zip(written, kv_write(*arguments, implementation="oracle"), strict=True):
        assert isinstance(got, Float8Pool)
        np.testing.assert_allclose(got.scales[1:], expected.scales[1:], rtol=2e-7)
        here, there = (np.asarray(pool.values[1:], np.float64) for pool in (got, expected))
        np.testing.assert_allclose(here, there, rtol=2.0**-3, atol=2.0**-9)  # neighbours
        assert (here == there).mean() > 0.999


def test_the_error_of_a_number_is_a_sixteenth_of_it_or_half_the_smallest_step():
    x = jnp.asarray(np.random.default_rng(2).standard_normal((40, HEADS, HEAD_DIM)) * 7, jnp.float32)
    values, scales = (np.asarray(array, np.float64) for array in quantize_heads(x, FLOAT8))
    wide = np.asarray(x, np.float64)
    assert np.abs(values).max(-1).min() == 448
    error = np.abs(values * scales[..., None] - wide)
    assert (error <= np.maximum(np.abs(wide) / 16, scales[..., None] * 2.0**-10) * 1.00001).all()


def test_heads_without_numbers_and_of_zeros():
    x = np.ones((4, HEAD_DIM), np.float32)
    x[0], x[1], x[2, 5], x[3, 7] = 0, 2.0**-120, np.nan, -np.inf
    values, scales = map(np.asarray, quantize_heads(jnp.asarray(x), FLOAT8))
    assert (values.astype(np.float32) == 0).all()
    np.testing.assert_array_equal(scales, [0, 0, np.nan, np.nan])


def test_native_kernels_leave_them_to_xla():
    k, v, slots = step()
    operands = {"k_pool": empty(), "v_pool": empty(), "k": k, "v": v, "slots": slots}
    assert registry.choose("kv_write", platform="cpu", operands=operands).implementation.name == "xla"
    with pytest.raises(ValueError, match=r"pools with scales are int8, not float8_e4m3fn|cannot compute this"):
        kv_write(**operands, implementation="cpu")


@pytest.mark.parametrize(("wrong", "message"), [
    (empty(dtype=jnp.int8), "v_pool.values must be float8_e4m3fn, got int8"),
    (empty(Int8Pool, jnp.int8), "both Float8Pools"),
    (jnp.zeros((BLOCKS, HEADS, SIZE, HEAD_DIM), jnp.bfloat16), "both Float8Pools")])
def test_a_wrong_pool_is_named(wrong, message):
    metadata = paged_attention_metadata(jnp.ones((1, 3), jnp.int32), jnp.array([0, 1], jnp.int32),
                                        jnp.array([4], jnp.int32), 8, SIZE)
    with pytest.raises(ValueError, match=message):
        paged_attention(jnp.zeros((8, 6, HEAD_DIM), jnp.bfloat16), empty(), wrong, metadata, scale=1.0)
    with pytest.raises(ValueError, match=message):
        kv_write(empty(), wrong, *step())
