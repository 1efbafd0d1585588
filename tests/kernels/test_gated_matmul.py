"""Gated products: what the contract says, whatever is beside a row.

Tolerance: the products are rounded to the dtype before the gate, so a sum that falls on the other side of a rounding
moves gate or up by one unit of the dtype's precision. That moves the result by a unit, or by what the activation makes
of the gate's; one more unit comes from the last rounding. So 4 units of the result, twice the gate's, and the error of
the products themselves, which test_matmul.py bounds.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import AVAILABLE, check_rows_alone, in_a_process, needs_native

from pallas_kernels import gated_matmul, implementations
from pallas_kernels.gated_matmul import ACTIVATIONS
from pallas_kernels.gated_matmul.oracle import gate_oracle

SHAPES = [(576, 1536), (64, 16), (33, 7), (1, 1), (100, 130), (1536, 40)]

gated = jax.jit(gated_matmul, static_argnums=(2, 3))


def operands(inputs, outputs, rows=300, dtype="bfloat16"):
    generator = np.random.default_rng(inputs * 7919 + outputs)
    x, weight = generator.normal(size=(rows, inputs)), generator.normal(size=(2 * outputs, inputs)) * inputs**-0.5
    return jnp.asarray(x, dtype), jnp.asarray(weight, dtype)


def assert_near_the_oracle(x, weight, activation, implementation):
    exact = np.asarray(gated_matmul(x, weight, activation, "oracle"), np.float64)
    error = np.abs(np.asarray(gated(x, weight, activation, implementation), np.float64) - exact)
    wide, unit = (np.asarray(x, np.float64), np.asarray(weight, np.float64)), float(jnp.finfo(x.dtype).eps)
    gate, up = np.split(wide[0] @ wide[1].T, 2, axis=-1)
    above, below = (gate_oracle(np.concatenate([gate * (1 + change), up], -1), activation) for change in (unit, -unit))
    of_gate, of_up = np.split(16 * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]).T), 2, axis=-1)
    allowed = 4 * unit * np.abs(exact) + np.abs(above - below)
    allowed += of_gate * (np.abs(up) + 1) * 1.2 + of_up * (np.abs(gate) + 1)
    assert (error <= allowed).all()


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_xla_is_near_the_oracle(activation, inputs, outputs, dtype):
    assert_near_the_oracle(*operands(inputs, outputs, rows=20, dtype=dtype), activation, "xla")


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_native_is_near_the_oracle(activation, inputs, outputs, instruction_set):
    assert_near_the_oracle(*operands(inputs, outputs), activation, "cpu")


@pytest.mark.parametrize(("inputs", "outputs"), [
    shape if shape in SHAPES[:3] else pytest.param(*shape, marks=pytest.mark.sweep) for shape in SHAPES])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_rows_bits_do_not_depend_on_its_place_or_on_the_number_of_rows(activation, inputs, outputs, instruction_set):
    x, weight = operands(inputs, outputs)
    check_rows_alone(lambda x: gated(x, weight, activation, "cpu"), x, (1, 2, 15, 16, 17, 31, 33, 64, 127, 129, 255))


def test_gates_far_from_zero_shut_and_open(instruction_set):
    x = jnp.asarray([[1.0], [-1.0]], jnp.bfloat16)
    weight = jnp.asarray([[300.0], [2.0], [0.0], [3.0], [5.0], [7.0]], jnp.bfloat16)
    got = np.asarray(gated(x, weight, "silu", "cpu"), np.float64)
    np.testing.assert_allclose(got[0], [900.0, 10 / (1 + np.exp(-2)), 0.0], rtol=2**-8)
    assert got[1, 0] == 0.0
    np.testing.assert_allclose(got[1, 1], 10 / (1 + np.exp(2)), rtol=2**-8)
    got = np.asarray(gated(x, weight.at[0].set(1e30), "gelu_tanh", "cpu"), np.float64)
    np.testing.assert_allclose(got[0], [3e30, 5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (2 + 0.044715 * 8))), 0.0],
                               rtol=2**-8)
    assert got[1, 0] == 0.0


def test_values_that_are_no_numbers_stay_in_their_row_and_output(instruction_set):
    x, weight = operands(100, 40, rows=20)
    clean = np.asarray(gated(x, weight, "silu", "cpu"))
    spoilt = np.asarray(gated(x.at[3, 99].set(jnp.nan), weight.at[57, 98].set(jnp.nan), "silu", "cpu"))
    assert np.isnan(spoilt[3].astype(np.float32)).all()
    assert np.isnan(spoilt[:, 17].astype(np.float32)).all()
    others = np.delete(np.arange(40), 17)
    np.testing.assert_array_equal(np.delete(spoilt, 3, 0)[:, others], np.delete(clean, 3, 0)[:, others])


@needs_native
@pytest.mark.parametrize(("rows", "outputs"), [(0, 5), (5, 0)])
def test_nothing_in_nothing_out(rows, outputs):
    assert gated(jnp.zeros((rows, 64), jnp.bfloat16), jnp.zeros((2 * outputs, 64), jnp.bfloat16), "silu", "cpu"
                 ).shape == (rows, outputs)


@needs_native
def test_the_bits_do_not_depend_on_the_number_of_threads():
    program = ('weight = normal(700, 576); '
               'show(gated_matmul(normal(rows, 576), weight, "gelu_tanh", "cpu") for rows in (1, 9, 40, 300))')
    assert in_a_process(program) == in_a_process(program, num_cores=1)


@pytest.mark.parametrize(("x", "weight", "message"), [
    (jnp.zeros(3), jnp.zeros((2, 3)), r"x must be \[T, I\], got shape \(3,\)"),
    (jnp.zeros((4, 3)), jnp.zeros((3, 3)), r"weight must be \[2 \* F, I\] with I = 3, got shape \(3, 3\)"),
    (jnp.zeros((4, 3)), jnp.zeros((2, 3), jnp.bfloat16), "must both be .* got float32 and bfloat16"),
])
def test_a_wrong_argument_is_named(x, weight, message):
    with pytest.raises(ValueError, match=message):
        gated_matmul(x, weight)


def test_an_unknown_activation_is_named():
    with pytest.raises(ValueError, match="activation='gelu' is not known; there are silu, gelu_tanh"):
        gated_matmul(jnp.zeros((4, 3)), jnp.zeros((2, 3)), "gelu")


@needs_native
@pytest.mark.parametrize(("weight", "y", "dtype", "activation", "message"), [
    ((4, 32), (8, 4), jnp.bfloat16, 0, "shapes must be"),
    ((4, 32), (8, 2), jnp.float32, 0, "y must be bfloat16"),
    ((4, 32), (8, 2), jnp.bfloat16, 2, "activation is not known"),
    ((4, 32), (8, 2), jnp.bfloat16, -1, "activation is not known"),
])
def test_the_library_checks_operands_itself(weight, y, dtype, activation, message):
    call = jax.ffi.ffi_call("pallas_kernels_gated_matmul_v1", (jax.ShapeDtypeStruct(y, dtype),
                                                               jax.ShapeDtypeStruct((1024,), jnp.uint8)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call(jnp.zeros((8, 32), jnp.bfloat16), jnp.zeros(weight, jnp.bfloat16),
                                   activation=activation))


def test_implementations_are_those_that_run_here():
    assert ("cpu" in implementations("gated_matmul")) == AVAILABLE
