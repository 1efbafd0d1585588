"""Rotary embedding and KV write: rotated as defined, written in place, whatever is beside a token."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import AVAILABLE, IMPLEMENTATIONS, needs_native, using

from pallas_kernels import cpu, implementations, kv_write, rope_kv_write

KV_HEADS, BLOCKS, SIZE = 2, 5, 16


def operands(dtype="bfloat16", tokens=70, heads=6, head_dim=64, seed=0):
    rng = np.random.default_rng(seed)
    pools = [jnp.asarray(rng.standard_normal((BLOCKS, KV_HEADS, SIZE, head_dim)), dtype) for _ in range(2)]
    qkv = jnp.asarray(rng.standard_normal((tokens, heads + 2 * KV_HEADS, head_dim)), dtype)
    angles = rng.uniform(-100, 100, (tokens, head_dim // 2)).astype(np.float32)
    real = min(tokens, (BLOCKS - 1) * SIZE)
    slots = np.concatenate([SIZE + rng.permutation((BLOCKS - 1) * SIZE)[:real], np.zeros(tokens - real, int)])
    return [*pools, qkv, jnp.asarray(np.cos(angles)), jnp.asarray(np.sin(angles)), jnp.asarray(slots, jnp.int32)]


def run(name, arguments):
    return jax.jit(functools.partial(rope_kv_write, implementation=name))(*arguments)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", [(6, 64), (1, 2), (3, 80), (8, 128), (2, 34), (9, 256)], ids=str)
def test_equals_the_oracle_but_for_one_rounding(name, shape):
    arguments = operands(heads=shape[0], head_dim=shape[1])
    got, expected = run(name, arguments), rope_kv_write(*arguments, implementation="oracle")
    for here, there in zip(got, expected, strict=True):
        assert here.dtype == there.dtype
    # The null block holds anything. A float32 result next to a tie may round to either neighbour.
    keys, queries = ([np.asarray(part, np.float64) for part in pair]
                     for pair in ((got[0][1:], expected[0][1:]), (got[2], expected[2])))
    for here, there in (keys, queries):
        np.testing.assert_allclose(here, there, rtol=2**-7, atol=2**-20)
        assert (here == there).mean() > 0.99
    np.testing.assert_array_equal(got[1][1:], expected[1][1:])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_xla_serves_other_dtypes(dtype):
    arguments = operands(dtype)
    got, expected = rope_kv_write(*arguments), rope_kv_write(*arguments, implementation="oracle")
    unit = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(got[2], np.float64), np.asarray(expected[2], np.float64), rtol=2 * unit,
                               atol=2 * unit)


def test_the_halves_of_a_head_turn_by_their_angle():
    k_pool, v_pool, _, _, _, _ = operands("float32", head_dim=4)
    qkv = jnp.zeros((1, 1 + 2 * KV_HEADS, 4)).at[0, 0].set(jnp.array([1.0, 2.0, 3.0, 4.0]))
    cos, sin = jnp.array([[0.0, 1.0]]), jnp.array([[1.0, 0.0]])
    q = rope_kv_write(k_pool, v_pool, qkv, cos, sin, jnp.zeros(1, jnp.int32), implementation="oracle")[2]
    np.testing.assert_array_equal(q[0, 0], [-3.0, 2.0, 1.0, 4.0])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_token_has_the_same_bits_in_any_company(name):
    k_pool, v_pool, *others = operands()
    whole = run(name, [k_pool, v_pool, *others])
    for first, last in ((0, 1), (3, 20), (40, 64)):
        part = run(name, [k_pool, v_pool, *(array[first:last] for array in others)])
        np.testing.assert_array_equal(part[2], whole[2][first:last])
        slots = np.asarray(others[3][first:last])
        for pool, expected in zip(part[:2], whole[:2], strict=True):
            block, offset = slots // SIZE, slots % SIZE
            np.testing.assert_array_equal(np.asarray(pool)[block, :, offset], np.asarray(expected)[block, :, offset])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_padding_touches_the_null_block_only(name):
    k_pool, v_pool, qkv, cos, sin, slots = operands()
    written = run(name, [k_pool, v_pool, qkv, cos, sin, jnp.arange(len(slots), dtype=jnp.int32) % SIZE])
    np.testing.assert_array_equal(written[0][1:], k_pool[1:])
    np.testing.assert_array_equal(written[1][1:], v_pool[1:])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_donated_pools_are_written_in_place(name):
    k_pool, v_pool, *rest = operands()
    before = k_pool.unsafe_buffer_pointer(), v_pool.unsafe_buffer_pointer()
    call = jax.jit(functools.partial(rope_kv_write, implementation=name), donate_argnums=(0, 1))
    after = call(k_pool, v_pool, *rest)[:2]
    assert tuple(pool.unsafe_buffer_pointer() for pool in after) == before


@needs_native
def test_the_native_bits_are_those_of_the_instructions_of_both_sets():
    arguments, found = operands(), []
    for name in cpu.instruction_sets():
        with using(name):
            found.append(jax.tree.map(np.asarray, run("cpu", arguments)))
    for other in found[1:]:
        jax.tree.map(np.testing.assert_array_equal, found[0], other)


@needs_native
@pytest.mark.parametrize("slot", [-1, BLOCKS * SIZE])
def test_a_slot_outside_the_pools_fails(slot):
    *others, slots = operands()
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"token 7 has slot {slot} of {BLOCKS * SIZE}"):
        jax.block_until_ready(run("cpu", [*others, slots.at[7].set(slot)]))


def replaced(index, value):
    arguments = operands()
    arguments[index] = value
    return arguments


@pytest.mark.parametrize(("arguments", "message"), [
    (replaced(0, jnp.zeros((3, 2), jnp.bfloat16)), r"k_pool and v_pool must be \[P, K, S, H\] of one dtype"),
    (replaced(2, jnp.zeros((70, 4, 64), jnp.bfloat16)), r"qkv must be bfloat16 \[T, N \+ 2 \* 2, 64\]"),
    (replaced(2, jnp.zeros((70, 10, 64), jnp.float32)), "got float32"),
    (replaced(3, jnp.zeros((70, 64))), r"cos must be float32 \[70, 32\]"),
    (replaced(5, jnp.zeros(3, jnp.int32)), r"slots must be int32 \[70\]"),
])
def test_a_wrong_argument_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        rope_kv_write(*arguments)


def test_writes_what_kv_write_writes():
    k_pool, v_pool, qkv, cos, sin, slots = operands("float32")
    k, v, _ = rope_kv_write(k_pool, v_pool, qkv, jnp.ones_like(cos), jnp.zeros_like(sin), slots)
    expected = kv_write(k_pool, v_pool, qkv[:, 6 : 6 + KV_HEADS], qkv[:, 6 + KV_HEADS :], slots)
    np.testing.assert_array_equal(k[1:], expected[0][1:])
    np.testing.assert_array_equal(v[1:], expected[1][1:])


def test_implementations_are_those_that_run_here():
    assert ("cpu" in implementations("rope_kv_write")) == AVAILABLE
