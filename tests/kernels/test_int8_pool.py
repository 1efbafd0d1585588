"""Pools in int8: each head quantized by itself, to the same bits by every implementation, and clear refusals."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import FOR_INT8_POOLS, INSTRUCTION_SETS, needs_int8_pools, using

from pallas_kernels import (
    Int8Pool,
    cpu,
    kv_write,
    paged_attention,
    paged_attention_metadata,
    registry,
    rope_kv_write,
)
from pallas_kernels.scaled_pool import quantize_heads

BLOCKS, HEADS, SIZE = 5, 3, 16
IMPLEMENTATIONS = ["xla", pytest.param("cpu", marks=needs_int8_pools)]


def empty(head_dim):
    return Int8Pool(jnp.full((BLOCKS, HEADS, SIZE, head_dim), 99, jnp.int8), jnp.full((BLOCKS, HEADS, SIZE), 9.0))


def step(head_dim=64, tokens=100, dtype="bfloat16", v_dim=None):
    """Pools and what goes into them; from token 60 on padding."""
    rng = np.random.default_rng(0)
    kv = [jnp.asarray(rng.standard_normal((tokens, HEADS, size)) * 3, dtype) for size in (head_dim, v_dim or head_dim)]
    slots = np.concatenate([SIZE + rng.permutation(4 * SIZE)[:60], np.full(tokens - 60, 3)])
    return [empty(head_dim), empty(v_dim or head_dim), *kv, jnp.asarray(slots, jnp.int32)]


def run(name, arguments, operation=kv_write):
    return jax.jit(functools.partial(operation, implementation=name))(*arguments)


def used(tree):
    """Everything but the null block, as numpy arrays."""
    return [np.asarray(leaf)[1:] for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
@pytest.mark.parametrize(("head_dim", "v_dim"), [(64, 64), (8, 24), (80, 80), (256, 16)])
def test_equals_the_oracle_but_for_ties(name, head_dim, v_dim):
    """Scales are off by a rounding of float32; a number next to a tie may go to either neighbour."""
    arguments = step(head_dim, v_dim=v_dim)
    for got, expected in zip(run(name, arguments), kv_write(*arguments, implementation="oracle"), strict=True):
        np.testing.assert_allclose(got.scales[1:], expected.scales[1:], rtol=2e-7)
        apart = np.abs(np.asarray(got.values[1:], int) - np.asarray(expected.values[1:], int))
        assert apart.max() <= 1
        assert (apart == 0).mean() > 0.999


@needs_int8_pools
def test_native_bits_are_those_of_xla():
    x = np.random.default_rng(1).standard_normal((100, HEADS, 64)) * 10.0 ** np.arange(-20, 20, 0.4)[:, None, None]
    arguments = [*step()[:2], jnp.asarray(x, jnp.bfloat16), jnp.asarray(-x, jnp.bfloat16), step()[4]]
    for one, other in zip(used(run("cpu", arguments)), used(run("xla", arguments)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_a_token_has_the_same_bits_in_any_company(name):
    *pools, k, v, slots = step()
    whole = run(name, [*pools, k, v, slots])
    for first, last in ((0, 1), (7, 20)):
        part = run(name, [*pools, k[first:last], v[first:last], slots[first:last]])
        block, offset = np.divmod(np.asarray(slots[first:last]), SIZE)
        for one, other in zip(jax.tree.leaves(part), jax.tree.leaves(whole), strict=True):
            np.testing.assert_array_equal(np.asarray(one)[block, :, offset], np.asarray(other)[block, :, offset])


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_padding_touches_the_null_block_only(name):
    *pools, k, v, slots = step()
    written = run(name, [*pools, k, v, slots % SIZE])
    for one, other in zip(used(written), used(pools), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_donated_pools_are_written_in_place(name):
    *pools, k, v, slots = step()
    before = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(pools)]
    written = jax.jit(functools.partial(kv_write, implementation=name), donate_argnums=(0, 1))(*pools, k, v, slots)
    assert [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(written)] == before


@pytest.mark.parametrize("name", [*IMPLEMENTATIONS, "oracle"])
def test_heads_of_zeros_of_tiny_numbers_and_of_none(name):
    k = np.ones((5, HEADS, 64), np.float32)
    k[0], k[1], k[2] = 0, 2.0**-120, [1, *[-2] * 63]
    k[3, :, 5], k[4, :, 63] = np.nan, -np.inf
    slots = jnp.arange(SIZE, SIZE + 5, dtype=jnp.int32)
    pool, _ = run(name, [empty(64), empty(64), jnp.asarray(k, jnp.bfloat16), jnp.asarray(k, jnp.bfloat16), slots])
    values, scales = np.asarray(pool.values[1, 0]), np.asarray(pool.scales[1, 0])
    np.testing.assert_allclose(scales[:5], [0, 0, 2 / 127, np.nan, np.nan], rtol=1e-6)
    assert (values[[0, 1, 3, 4]] == 0).all()
    assert values[2].tolist() == [64, *[-127] * 63]  # 63.5 goes to the even neighbour


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_half_of_a_step_is_the_most_that_is_lost(dtype):
    x = jnp.asarray(np.random.default_rng(2).standard_normal((40, HEADS, 64)) * 7, dtype)
    values, scales = quantize_heads(x)
    error = np.abs(np.asarray(values, np.float64) * np.asarray(scales)[..., None] - np.asarray(x, np.float64))
    assert (error <= np.asarray(scales)[..., None] * 0.50001).all()


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_rotated_keys_are_quantized_as_they_would_be_apart(name):
    rng = np.random.default_rng(3)
    qkv = jnp.asarray(rng.standard_normal((60, 4 + 2 * HEADS, 64)), jnp.bfloat16)
    angles = rng.uniform(-9, 9, (60, 32)).astype(np.float32)
    slots = step()[4][:60]
    tables = [jnp.asarray(np.cos(angles)), jnp.asarray(np.sin(angles)), slots]
    k, v, q = run(name, [empty(64), empty(64), qkv, *tables], rope_kv_write)
    plain = [jnp.zeros((BLOCKS, HEADS, SIZE, 64), jnp.bfloat16)] * 2
    plain_k, plain_v, plain_q = run(name, [*plain, qkv, *tables], rope_kv_write)
    np.testing.assert_array_equal(q, plain_q)
    block, offset = np.divmod(np.asarray(slots), SIZE)
    for pool, numbers in ((k, plain_k), (v, plain_v)):
        values, scales = quantize_heads(numbers[block, :, offset])
        np.testing.assert_array_equal(pool.values[block, :, offset], values)
        np.testing.assert_array_equal(pool.scales[block, :, offset], scales)


@needs_int8_pools
@pytest.mark.parametrize("slot", [-1, BLOCKS * SIZE])
@pytest.mark.parametrize("operation", [kv_write, rope_kv_write])
def test_native_slots_out_of_range_fail(operation, slot):
    *pools, k, v, slots = step()
    inputs = [k, v] if operation is kv_write else [jnp.zeros((100, 7, 64), jnp.bfloat16), *[jnp.zeros((100, 32))] * 2]
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"token 7 has slot {slot} of {BLOCKS * SIZE}"):
        jax.block_until_ready(run("cpu", [*pools, *inputs, slots.at[7].set(slot)], operation))


def attend(k_pool, v_pool):
    metadata = paged_attention_metadata(jnp.ones((1, 3), jnp.int32), jnp.array([0, 1], jnp.int32),
                                        jnp.array([4], jnp.int32), 8, SIZE)
    return paged_attention(jnp.zeros((8, 6, 64), jnp.bfloat16), k_pool, v_pool, metadata, scale=1.0)


def write(k_pool, v_pool):
    return kv_write(k_pool, v_pool, *step()[2:])


def rotate(k_pool, v_pool):
    return rope_kv_write(k_pool, v_pool, jnp.zeros((100, 7, 64), jnp.bfloat16), *[jnp.zeros((100, 32))] * 2, step()[4])


@pytest.mark.parametrize("call", [attend, write, rotate])
@pytest.mark.parametrize(("wrong", "message"), [
    (Int8Pool(empty(64).values, jnp.zeros((BLOCKS, HEADS, 8))), r"scales must be float32 \[P, K, S\] = \(5, 3, 16\)"),
    (Int8Pool(empty(64).values, empty(64).scales.astype(jnp.bfloat16)), r"scales must be float32.*got bfloat16"),
    (Int8Pool(empty(64).values.astype(jnp.int32), empty(64).scales), "values must be int8, got int32"),
    (jnp.zeros((BLOCKS, HEADS, SIZE, 64), jnp.bfloat16), "Int8Pool|one dtype"),
])
def test_a_wrong_pool_is_named(call, wrong, message):
    with pytest.raises(ValueError, match=message):
        call(empty(64), wrong)


def test_integers_are_refused_and_other_floats_left_to_xla():
    *pools, k, v, slots = step()
    with pytest.raises(ValueError, match="k must be float32, bfloat16 or float16, got int32"):
        kv_write(*pools, k.astype(jnp.int32), v, slots)
    operands = {"k_pool": pools[0], "v_pool": pools[1], "k": k.astype(jnp.float32), "v": v, "slots": slots}
    assert registry.choose("kv_write", platform="cpu", operands=operands).implementation.name == "xla"


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize("call", [attend, write, rotate])
def test_without_products_of_bytes_xla_takes_over(call, name):
    with using(name):
        program = jax.jit(lambda *pools: call(*pools)).lower(empty(64), empty(64))  # a function not traced before
        ran = program.compile()(empty(64), empty(64))
    assert ("_int8_" in program.as_text()) == (name in FOR_INT8_POOLS)
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in jax.tree.leaves(ran))


@needs_int8_pools
@pytest.mark.parametrize(("operation", "call"), [("paged_attention", attend), ("kv_write", write),
                                                 ("rope_kv_write", rotate)])
def test_native_programs_say_what_they_lack_when_the_instruction_set_is_changed(operation, call):
    program = jax.jit(lambda *pools: call(*pools)).lower(empty(64), empty(64)).compile()
    lacking = pytest.raises(jax.errors.JaxRuntimeError, match=f"{operation}: int8 pools need AVX512-BF16 or AMX")
    with using(cpu.instruction_sets()[0]), lacking:
        jax.block_until_ready(program(empty(64), empty(64)))
    jax.block_until_ready(program(empty(64), empty(64)))
