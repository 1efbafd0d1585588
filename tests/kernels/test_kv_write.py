"""KV write: exact, in place, and clear about what it refuses."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import IMPLEMENTATIONS, needs_native

from pallas_kernels.kv_write import kv_write, write_pool


@pytest.fixture(params=IMPLEMENTATIONS)
def write(request):
    return functools.partial(kv_write, implementation=request.param)


def step(dtype, num_real=5, num_tokens=8, head_dims=(8, 8)):
    rng = np.random.default_rng(0)
    pools = [jnp.asarray(rng.standard_normal((4, 2, 16, head_dim)), dtype) for head_dim in head_dims]
    kv = [jnp.asarray(rng.standard_normal((num_tokens, 2, head_dim)), dtype) for head_dim in head_dims]
    slots = np.concatenate([16 + rng.permutation(48)[:num_real], rng.integers(0, 16, num_tokens - num_real)])
    return [*pools, *kv, jnp.asarray(slots, jnp.int32)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dims", [(8, 8), (16, 8)], ids=["equal", "k and v differ"])
def test_equals_the_oracle_exactly_outside_the_null_block(write, dtype, head_dims):
    arguments = step(dtype, head_dims=head_dims)
    written = jax.jit(write)(*arguments)
    expected = kv_write(*arguments, implementation="oracle")
    for got, want in zip(written, expected, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got[1:].astype(jnp.float32), want[1:].astype(jnp.float32))


def test_oracle_puts_a_token_into_its_block_and_offset():
    k_pool, v_pool, k, v, _ = step("float32", num_real=1, num_tokens=1)
    written, _ = kv_write(k_pool, v_pool, k, v, jnp.array([35], jnp.int32), implementation="oracle")
    np.testing.assert_array_equal(written[2, :, 3], k[0])
    assert int((written != k_pool).sum()) == k[0].size


def test_padding_touches_the_null_block_only(write):
    k_pool, v_pool, k, v, slots = step("float32", num_real=0)
    written = write(k_pool, v_pool, k, v, slots)
    np.testing.assert_array_equal(written[0][1:], k_pool[1:])
    np.testing.assert_array_equal(written[1][1:], v_pool[1:])


def test_a_pool_alone_is_written_in_place_as_keys_are():
    k_pool, v_pool, k, v, slots = step("bfloat16")
    expected, _ = kv_write(k_pool, v_pool, k, v, slots, implementation="oracle")
    before = k_pool.unsafe_buffer_pointer()
    written = jax.jit(write_pool, donate_argnums=0)(k_pool, k, slots)
    assert written.unsafe_buffer_pointer() == before
    np.testing.assert_array_equal(written[1:].astype(jnp.float32), expected[1:].astype(jnp.float32))


def test_donated_pools_are_written_in_place(write):
    k_pool, v_pool, *rest = step("bfloat16")
    before = k_pool.unsafe_buffer_pointer(), v_pool.unsafe_buffer_pointer()
    after = jax.jit(write, donate_argnums=(0, 1))(k_pool, v_pool, *rest)
    assert tuple(pool.unsafe_buffer_pointer() for pool in after) == before


@pytest.mark.parametrize(
    ("position", "wrong", "message"),
    [
        (0, jnp.zeros((4, 2, 16)), r"k_pool must be \[P, K, S, H\]"),
        (1, jnp.zeros((4, 2, 8, 8)), r"v_pool must be \(4, 2, 16, 8\) but for the head dim"),
        (2, jnp.zeros((7, 2, 8)), r"k must be \[T, K, H\] = \(8, 2, 8\), got \(7, 2, 8\)"),
        (3, jnp.zeros((8, 2, 8), jnp.bfloat16), "v must have its pool's dtype float32, got bfloat16"),
        (4, jnp.zeros(8), r"slots must be int32 \[T\], got float32"),
    ],
)
def test_a_wrong_argument_is_named(position, wrong, message):
    arguments = step("float32")
    arguments[position] = wrong
    with pytest.raises(ValueError, match=message):
        kv_write(*arguments)


@needs_native
@pytest.mark.parametrize("slot", [-1, 64, 2**31 - 1])
def test_native_slots_out_of_range_fail_before_anything_is_written(slot):
    k_pool, v_pool, k, v, slots = step("bfloat16")
    before = np.asarray(k_pool, np.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"kv_write: token 7 has slot {slot} of 64"):
        jax.block_until_ready(kv_write(k_pool, v_pool, k, v, slots.at[7].set(slot), implementation="cpu"))
    np.testing.assert_array_equal(np.asarray(k_pool, np.float32), before)


@needs_native
def test_native_write_of_many_tokens_equals_the_oracle():
    rng = np.random.default_rng(0)
    pools = [jnp.asarray(rng.standard_normal((40, 3, 16, 64)), jnp.bfloat16) for _ in range(2)]
    kv = [jnp.asarray(rng.standard_normal((500, 3, 64)), jnp.bfloat16) for _ in range(2)]
    slots = jnp.asarray(16 + rng.permutation(39 * 16)[:500], jnp.int32)
    for got, want in zip(
        kv_write(*pools, *kv, slots, implementation="cpu"),
        kv_write(*pools, *kv, slots, implementation="oracle"),
        strict=True,
    ):
        np.testing.assert_array_equal(got[1:].astype(jnp.float32), want[1:].astype(jnp.float32))
