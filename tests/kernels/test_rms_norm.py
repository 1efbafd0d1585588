"""Root-mean-square normalization: near the oracle's, and bit for bit the same whatever is beside a row.

Tolerance: in float32 the mean of n squares and three more operations, each rounded; n / 8 roundings in a row at most,
as sums are spread over lanes or added as a tree. So (n / 8 + 8) * 2**-24 of a value, and half a unit of the dtype.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import AVAILABLE, check_rows_alone, needs_native

from pallas_kernels import implementations, rms_norm

SHAPES = [(576,), (64,), (16,), (1,), (7,), (100,), (2049,)]
DTYPES = ["float32", "bfloat16", "float16"]

normed = jax.jit(rms_norm, static_argnums=(2, 3, 4))


def operands(*shape, heads=None, dtype="bfloat16"):
    generator = np.random.default_rng(sum(shape))
    x = generator.normal(0, 3, size=shape)
    weight = generator.normal(1, 0.5, size=shape[-1:] if heads is None else (heads, shape[-1]))
    return jnp.asarray(x, dtype), jnp.asarray(weight, dtype)


def assert_near_the_oracle(x, weight, offset, implementation):
    exact = np.asarray(rms_norm(x, weight, 1e-5, offset, "oracle")).astype(np.float64)
    actual = np.asarray(normed(x, weight, 1e-5, offset, implementation)).astype(np.float64)
    allowed = float(jnp.finfo(x.dtype).eps) + (x.shape[-1] / 8 + 8) * 2.0**-24
    assert (np.abs(actual - exact) <= allowed * np.abs(exact)).all()


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_xla_is_near_the_oracle(shape, dtype, offset):
    assert_near_the_oracle(*operands(5, *shape, dtype=dtype), offset, "xla")


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_native_is_near_the_oracle(shape, offset, instruction_set):
    assert_near_the_oracle(*operands(5, *shape), offset, "cpu")


@pytest.mark.parametrize("implementation", [pytest.param("cpu", marks=needs_native), "xla"])
def test_heads_may_have_weights_of_their_own(implementation):
    x, weight = operands(6, 3, 40, heads=3)
    assert_near_the_oracle(x, weight, 0.0, implementation)
    alone = [normed(x[:, head], weight[head], 1e-5, 0.0, implementation) for head in range(3)]
    np.testing.assert_array_equal(normed(x, weight, 1e-5, 0.0, implementation), jnp.stack(alone, 1))


@pytest.mark.parametrize("size", [576, 100])
def test_a_rows_bits_do_not_depend_on_its_place_or_on_the_number_of_rows(size, instruction_set):
    x, weight = operands(600, size)
    check_rows_alone(lambda x: normed(x, weight, 1e-6, 0.0, "cpu"), x, (1, 2, 3, 8, 57, 64, 333))


def test_instruction_sets_agree_to_the_bit(instruction_set):
    x, weight = operands(40, 576)
    exact = np.asarray(rms_norm(x, weight, 1e-5, 0.0, "oracle"))
    # The same few of these 23,040 values are rounded to the other side of a tie by all of them.
    assert (np.asarray(normed(x, weight, 1e-5, 0.0, "cpu")) != exact).sum() <= 20


@pytest.mark.parametrize("implementation", [pytest.param("cpu", marks=needs_native), "xla", "oracle"])
def test_a_row_of_zeros_stays_zeros_and_no_number_stays_in_its_row(implementation):
    x, weight = operands(4, 48)
    clean = np.asarray(normed(x, weight, 1e-5, 0.0, implementation))
    spoilt = np.asarray(normed(x.at[1].set(0).at[2, 47].set(jnp.nan), weight, 1e-5, 0.0, implementation))
    assert not spoilt[1].any()
    assert np.isnan(spoilt[2].astype(np.float32)).all()
    np.testing.assert_array_equal(spoilt[[0, 3]], clean[[0, 3]])


@needs_native
def test_no_rows_in_no_rows_out():
    assert normed(jnp.zeros((0, 64), jnp.bfloat16), jnp.ones(64, jnp.bfloat16), 1e-5, 0.0, "cpu").shape == (0, 64)


@pytest.mark.parametrize(("x", "weight", "message"), [
    ((8,), (8,), r"x must be \[\.\.\., D\]"),
    ((8, 0), (0,), r"x must be \[\.\.\., D\]"),
    ((8, 4), (5,), r"weight must be .* \(8, 4\); got \(5,\)"),
    ((2, 3, 4), (2, 4), r"weight must be .*; got \(2, 4\)"),
    ((2, 3, 4), (2, 3, 4), "weight must be"),
])
def test_a_wrong_shape_is_named(x, weight, message):
    with pytest.raises(ValueError, match=message):
        rms_norm(jnp.zeros(x), jnp.zeros(weight), 1e-5)


def test_a_wrong_dtype_is_named():
    with pytest.raises(ValueError, match="x and weight must be float32, bfloat16 or float16, got int32 and float32"):
        rms_norm(jnp.zeros((2, 4), jnp.int32), jnp.zeros(4), 1e-5)


@needs_native
@pytest.mark.parametrize(("x", "weight", "y", "message"), [
    ((4,), (4,), (4,), "x must be"),
    ((2, 4), (5,), (2, 4), "weight must be"),
    ((2, 3, 4), (2, 4), (2, 3, 4), "weight must be"),
    ((2, 4), (4,), (2, 5), "y must have the shape of x"),
])
def test_the_library_checks_shapes_itself(x, weight, y, message):
    call = jax.ffi.ffi_call("pallas_kernels_rms_norm_v1", jax.ShapeDtypeStruct(y, jnp.bfloat16))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call(jnp.zeros(x, jnp.bfloat16), jnp.zeros(weight, jnp.bfloat16),
                                   epsilon=np.float32(1e-5), offset=np.float32(0)))


def test_implementations_are_those_that_run_here():
    assert set(implementations("rms_norm")) == {"xla", "oracle"} | ({"cpu"} if AVAILABLE else set())
