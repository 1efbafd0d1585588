"""Products with weights: near the oracle's at every shape, and bit for bit the same whatever is beside a row.

Tolerance: sums of products in float32 differ from float64 by a few roundings of 2**-24, relative to the sum of the
products' magnitudes (4 x 2**-24 seen with 1536 inputs; 16 allowed).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import AVAILABLE, INSTRUCTION_SETS_HERE, check_rows_alone, in_a_process, needs_native

from pallas_kernels import implementations, matmul

SHAPES = [(576, 960), (1536, 576), (33, 7), (1, 1), (100, 130), (64, 16), (608, 40), (31, 100)]

product = jax.jit(matmul, static_argnums=(2, 3))


def operands(inputs, outputs, rows=600, dtype="bfloat16"):
    generator = np.random.default_rng(inputs * 7919 + outputs)
    x, weight = generator.normal(size=(rows, inputs)), generator.normal(size=(outputs, inputs))
    return jnp.asarray(x, dtype), jnp.asarray(weight, dtype)


def assert_near_the_oracle(x, weight, implementation):
    exact = np.asarray(matmul(x, weight, jnp.float32, "oracle"))
    magnitude = np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(weight, np.float64)).T
    error = np.abs(np.asarray(product(x, weight, jnp.float32, implementation)) - exact)
    assert (error <= 16 * 2.0**-24 * magnitude).all()


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_xla_is_near_the_oracle(inputs, outputs, dtype):
    assert_near_the_oracle(*operands(inputs, outputs, rows=40, dtype=dtype), "xla")


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_native_is_near_the_oracle(inputs, outputs, instruction_set):
    assert_near_the_oracle(*operands(inputs, outputs), "cpu")


@pytest.mark.parametrize(("inputs", "outputs"), [
    shape if shape in SHAPES[:3] else pytest.param(*shape, marks=pytest.mark.sweep) for shape in SHAPES])
def test_a_rows_bits_do_not_depend_on_its_place_or_on_the_number_of_rows(inputs, outputs, instruction_set):
    x, weight = operands(inputs, outputs)
    check_rows_alone(lambda x: product(x, weight, jnp.float32, "cpu"), x,
                     (*range(1, 41), 63, 64, 65, 100, 255, 512, 513))


@pytest.mark.parametrize(("inputs", "outputs"), [(576, 100), (33, 7)])
def test_rows_of_zeros_at_the_end_are_zeros_and_change_no_others(inputs, outputs, instruction_set):
    x, weight = operands(inputs, outputs, rows=9)
    whole = np.asarray(product(x, weight, jnp.float32, "cpu"))
    for rows in (0, 1, 2, 3, 5, 7, 8):
        padded = product(x[:8].at[rows:].multiply(-0.0), weight, jnp.float32, "cpu")
        np.testing.assert_array_equal(padded[:rows], whole[:rows])
        np.testing.assert_array_equal(padded[rows:], np.zeros((8 - rows, outputs)))


def test_an_outputs_bits_do_not_depend_on_its_place(instruction_set):
    x, weight = operands(576, 960, rows=70)
    whole = np.asarray(product(x, weight, jnp.float32, "cpu"))
    for first, last in ((0, 1), (5, 22), (64, 160), (901, 960)):
        for rows in (1, 17, 70):
            part = product(x[:rows], weight[first:last], jnp.float32, "cpu")
            np.testing.assert_array_equal(part, whole[:rows, first:last])


def test_the_sum_is_rounded_once(instruction_set):
    x, weight = operands(576, 100, rows=40)
    wide = product(x, weight, jnp.float32, "cpu")
    np.testing.assert_array_equal(product(x, weight, jnp.bfloat16, "cpu"), wide.astype(jnp.bfloat16))


def test_values_that_are_no_numbers_stay_in_their_row_and_output(instruction_set):
    x, weight = operands(100, 40, rows=20)
    clean = np.asarray(product(x, weight, jnp.float32, "cpu"))
    spoilt = np.asarray(product(x.at[3, 99].set(jnp.nan), weight.at[17, 98].set(jnp.inf), jnp.float32, "cpu"))
    assert np.isnan(spoilt[3]).all()
    assert not np.isfinite(spoilt[:, 17]).any()
    others = np.delete(np.arange(40), 17)
    np.testing.assert_array_equal(np.delete(spoilt, 3, 0)[:, others], np.delete(clean, 3, 0)[:, others])


@needs_native
@pytest.mark.parametrize(("rows", "outputs"), [(0, 5), (5, 0)])
def test_nothing_in_nothing_out(rows, outputs):
    assert product(jnp.zeros((rows, 64), jnp.bfloat16), jnp.zeros((outputs, 64), jnp.bfloat16), None, "cpu"
                   ).shape == (rows, outputs)


@needs_native
def test_no_inputs_sum_to_zero(instruction_set):
    y = product(jnp.zeros((5, 0), jnp.bfloat16), jnp.zeros((20, 0), jnp.bfloat16), jnp.float32, "cpu")
    np.testing.assert_array_equal(y, np.zeros((5, 20)))


PRODUCTS = """
matmul = jax.jit(matmul, static_argnums=(2, 3))
weight = normal(700, 576)
show(matmul(normal(rows, 576), weight, jnp.float32, "cpu") for rows in (1, 9, 40, 300))
"""


@needs_native
def test_the_bits_do_not_depend_on_the_number_of_threads():
    assert in_a_process(PRODUCTS) == in_a_process(PRODUCTS, num_cores=1)


@needs_native
def test_the_environment_limits_the_instruction_set():
    lowest = INSTRUCTION_SETS_HERE[0]
    assert in_a_process("print(cpu.instruction_set())", PALLAS_KERNELS_CPU_INSTRUCTION_SET=lowest) == [lowest]


def test_an_implementation_asked_for_says_what_it_does_not_take():
    x, weight = operands(64, 16, rows=8, dtype="float32")
    with pytest.raises(ValueError, match=r"implementation='cpu' cannot compute this matmul: "):
        matmul(x, weight, implementation="cpu")
    np.testing.assert_array_equal(matmul(x, weight), matmul(x, weight, implementation="xla"))


@pytest.mark.parametrize(
    ("x", "weight", "message"),
    [
        (jnp.zeros(3), jnp.zeros((2, 3)), r"x must be \[T, I\], got shape \(3,\)"),
        (jnp.zeros((4, 3)), jnp.zeros((3, 2)), r"weight must be \[O, I\] with I = 3, got shape \(3, 2\)"),
        (jnp.zeros((4, 3)), jnp.zeros((2, 3), jnp.bfloat16), "must both be .* got float32 and bfloat16"),
    ],
)
def test_a_wrong_argument_is_named(x, weight, message):
    with pytest.raises(ValueError, match=message):
        matmul(x, weight)


@needs_native
@pytest.mark.parametrize(("shapes", "message"), [
    (((4, 3), (2, 5), (4, 2)), "shapes must be"),
    (((4, 3), (2, 3), (4, 3)), "shapes must be"),
    (((4, 3), (6,), (4, 2)), "two dimensions"),
])
def test_the_library_checks_shapes_itself(shapes, message):
    x, weight, y = shapes
    call = jax.ffi.ffi_call("pallas_kernels_matmul_v1", (jax.ShapeDtypeStruct(y, jnp.float32),
                                                         jax.ShapeDtypeStruct((1024,), jnp.uint8)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call(jnp.zeros(x, jnp.bfloat16), jnp.zeros(weight, jnp.bfloat16)))


@needs_native
def test_a_small_workspace_or_another_dtype_is_refused():
    call = jax.ffi.ffi_call("pallas_kernels_matmul_v1", (jax.ShapeDtypeStruct((17, 16), jnp.float32),
                                                         jax.ShapeDtypeStruct((1024,), jnp.uint8)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="workspace is too small"):
        jax.block_until_ready(call(jnp.zeros((17, 32), jnp.bfloat16), jnp.zeros((16, 32), jnp.bfloat16)))
    call = jax.ffi.ffi_call("pallas_kernels_matmul_v1", (jax.ShapeDtypeStruct((8, 16), jnp.float16),
                                                         jax.ShapeDtypeStruct((1024,), jnp.uint8)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="bfloat16 or float32"):
        jax.block_until_ready(call(jnp.zeros((8, 32), jnp.bfloat16), jnp.zeros((16, 32), jnp.bfloat16)))


@needs_native
def test_a_compiled_program_loads_from_the_persistent_cache(tmp_path):
    program = f"""
jax.config.update("jax_compilation_cache_dir", {str(tmp_path)!r})
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
{PRODUCTS}
print(len(hits))
"""
    (bits, few), (again, many) = in_a_process(program), in_a_process(program)
    assert bits == again
    assert int(few) < 4 <= int(many)


def test_implementations_are_those_that_run_here():
    assert ("cpu" in implementations("matmul")) == AVAILABLE
