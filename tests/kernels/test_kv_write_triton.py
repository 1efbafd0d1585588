"""KV write in Triton, alone and after the rotary embedding, in Triton's interpreter, against the oracle.

Nothing is computed in a write of floats, so it is exact. The rotary embedding is two products and a sum in float32,
each rounded, and one rounding to the dtype, which falls to either neighbour near a tie; so does a number of a pool in
bytes.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.triton_process import needs_triton

from pallas_kernels import Float8Pool, Int8Pool, kv_write, rope_kv_write
from pallas_kernels.scaled_pool import quantize_heads

pytestmark = needs_triton

KV_HEADS, BLOCKS, SIZE = 2, 5, 16
KINDS = {"int8": (Int8Pool, -128), "float8_e4m3fn": (Float8Pool, -448)}
STEP = {"int8": 1 / 127, "float8_e4m3fn": 32 / 448}
"""Between neighbours, at most, as a part of a head's largest number."""


def write(*arguments):
    """In the interpreter's process."""
    return on_host(jax.jit(lambda *given: kv_write(*given, implementation="triton"))(*on_device(arguments)))


def rope_write(*arguments):
    """In the interpreter's process."""
    return on_host(jax.jit(lambda *given: rope_kv_write(*given, implementation="triton"))(*on_device(arguments)))


def on_device(tree):
    return jax.tree.map(jnp.asarray, tree)


def on_host(tree):
    return jax.tree.map(np.asarray, tree)


def pools_of(rng, head_dims, dtype, quantized):
    """Two pools in which everything is NaN, or under bytes a scale of NaN over the lowest number."""
    shapes = [(BLOCKS, KV_HEADS, SIZE, head_dim) for head_dim in head_dims]
    if quantized:
        kind, lowest = KINDS[quantized]
        return [kind(np.full(shape, lowest, quantized), np.full(shape[:3], np.nan, np.float32)) for shape in shapes]
    return [np.full(shape, np.nan, dtype) for shape in shapes]


def slots_of(rng, tokens):
    """Distinct for most tokens; the null block's for a few, in between."""
    slots = SIZE + rng.permutation((BLOCKS - 1) * SIZE)[:tokens]
    slots = np.concatenate([slots, np.zeros(tokens - len(slots), int)])
    slots[1::5] = rng.integers(0, SIZE, len(slots[1::5]))
    return slots.astype(np.int32)


def numbers(pool):
    """As float64, and which slots were written."""
    if isinstance(pool, Int8Pool | Float8Pool):
        return pool.values.astype(np.float64) * pool.scales[..., None], ~np.isnan(pool.scales)
    return pool.astype(np.float64), ~np.isnan(pool.astype(np.float64)).any(-1)


def check_pools(got, expected):
    for here, there in zip(got, expected, strict=True):
        (wide, written), (wanted, _) = numbers(here), numbers(on_host(there))
        assert not written[0].any()  # nothing for padding
        assert (written[1:] == ~np.isnan(wanted[1:]).any(-1)).all()
        within = written & (np.arange(BLOCKS) > 0)[:, None, None]
        yield wide[within], wanted[within]


@pytest.mark.parametrize(("dtype", "head_dims", "tokens", "quantized"), [
    ("bfloat16", (80, 48), 37, None), ("float16", (64, 64), 3, None), ("bfloat16", (64, 64), 50, "int8"),
    ("bfloat16", (80, 48), 50, "float8_e4m3fn")], ids=str)
def test_write_equals_the_oracle(interpreter, dtype, head_dims, tokens, quantized):
    rng = np.random.default_rng(0)
    dtype = jnp.dtype(dtype)
    pools = pools_of(rng, head_dims, dtype, quantized)
    kv = [rng.standard_normal((tokens, KV_HEADS, head_dim)).astype(dtype) for head_dim in head_dims]
    slots = slots_of(rng, tokens)
    got = interpreter.call(f"{__name__}:write", *pools, *kv, slots)
    expected = kv_write(*on_device(pools), *on_device(kv), jnp.asarray(slots), implementation="oracle")
    for here, there in check_pools(got, expected):
        if quantized:
            np.testing.assert_allclose(here, there, rtol=0, atol=np.abs(there).max() * STEP[quantized] * 1.001)
            assert np.mean(np.abs(here - there) < 1e-6) > 0.999
        else:
            np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize(("dtype", "head_dim", "tokens", "quantized"), [
    ("bfloat16", 64, 37, None), ("float16", 80, 3, None), ("bfloat16", 80, 50, "int8"), ("bfloat16", 2, 300, None),
    ("bfloat16", 64, 37, "float8_e4m3fn")], ids=str)
def test_rotation_and_write_equal_the_oracle_but_for_one_rounding(interpreter, dtype, head_dim, tokens, quantized):
    rng = np.random.default_rng(1)
    dtype = jnp.dtype(dtype)
    pools = pools_of(rng, (head_dim, head_dim), dtype, quantized)
    qkv = rng.standard_normal((tokens, 6 + 2 * KV_HEADS, head_dim)).astype(dtype)
    angles = rng.uniform(-100, 100, (tokens, head_dim // 2))
    arguments = [qkv, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), slots_of(rng, tokens)]
    got = interpreter.call(f"{__name__}:rope_write", *pools, *arguments)
    expected = rope_kv_write(*on_device(pools), *on_device(arguments), implementation="oracle")
    unit = float(jnp.finfo(dtype).eps)
    pairs = [(got[2].astype(np.float64), np.asarray(expected[2], np.float64)), *check_pools(got[:2], expected[:2])]
    for here, there in pairs:
        largest = np.abs(there).max()
        step = largest * STEP[quantized] * 1.001 if quantized else 1e-6
        np.testing.assert_allclose(here, there, rtol=unit, atol=step)
        assert np.mean(np.abs(here - there) < 1e-6 * largest) > 0.99


@pytest.mark.parametrize("dtype", KINDS)
def test_heads_without_numbers_and_of_zeros_are_quantized_as_defined(interpreter, dtype):
    pools = pools_of(None, (64, 64), None, dtype)
    k = np.random.default_rng(2).standard_normal((5, KV_HEADS, 64)).astype(jnp.bfloat16)
    k[0, 0, 3], k[1, 1, 63], k[2], k[3, 0] = np.nan, -np.inf, 0, 2.0**-101
    slots = SIZE + np.arange(5, dtype=np.int32)
    k_pool, _ = interpreter.call(f"{__name__}:write", *pools, k, k, slots)
    values, scales = on_host(quantize_heads(jnp.asarray(k), jnp.dtype(dtype)))
    np.testing.assert_array_equal(k_pool.values[1, :, :5].swapaxes(0, 1), values)
    np.testing.assert_array_equal(k_pool.scales[1, :, :5].swapaxes(0, 1), scales)


def test_what_it_does_not_take_is_said(interpreter):
    pools = pools_of(None, (8, 8), np.float32, None)
    k, slots = np.zeros((3, KV_HEADS, 8), np.float32), np.zeros(3, np.int32)
    with pytest.raises(RuntimeError, match="kv_write: keys and values are bfloat16 or float16, not float32"):
        interpreter.call(f"{__name__}:write", *pools, k, k, slots)
