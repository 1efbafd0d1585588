"""Products by groups of rows, against the oracle in float64.

Sums of I products are in float32: sqrt(I) roundings of half a unit, 2^-24 of the sum of magnitudes, bounded here by
2^-20 of the largest result; then one rounding to the dtype of the result.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import needs_native
from kernels.quantized_rows import random_rows
from kernels.triton_process import needs_triton

from pallas_kernels import grouped_matmul, matmul, quantized_grouped_matmul, quantized_matmul, registry
from pallas_kernels.grouped_matmul.oracle import multiply

SIZES = {
    "ragged": (5, 0, 17, 1, 16, 0, 20, 3),
    "one group has all": (0, 0, 62, 0),
    "rows past the last group": (3, 4, 0, 1),
    "no rows": (0, 0),
    "single rows": (1,) * 8,
}
DTYPES = {"bfloat16": ("bfloat16", False), "float16": ("float16", False), "float8": ("float8_e4m3fn", True),
          "float8 without scales": ("float8_e4m3fn", False)}


def operands(sizes, weights_dtype="bfloat16", scaled=False, rows=62, width=48, outputs=40, x_dtype="bfloat16"):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width)).astype(jnp.dtype(x_dtype))
    weights = rng.standard_normal((len(sizes), outputs, width)).astype(jnp.dtype(weights_dtype))
    scales = rng.uniform(0.5, 2, (len(sizes), outputs)).astype(np.float32) if scaled else None
    return x, weights, np.asarray(sizes, np.int32), scales


def run(name, *given, out_dtype=None):
    """Here, or in the interpreter's process."""
    x, weights, sizes, scales = jax.tree.map(jnp.asarray, given)
    function = jax.jit(lambda *a: grouped_matmul(*a, scales, out_dtype=out_dtype, implementation=name))
    return np.asarray(function(x, weights, sizes).astype(jnp.float32))


def check(compute, given, dtype):
    expected = multiply(*given)
    largest = max(np.abs(expected).max(), 1e-9)
    wide = compute(*given, out_dtype="float32")
    np.testing.assert_allclose(wide, expected, rtol=0, atol=2.0**-20 * largest)
    assert not wide[sum(given[2]) :].any()
    rounded = compute(*given)
    np.testing.assert_allclose(rounded, expected, rtol=float(jnp.finfo(dtype).eps), atol=2.0**-20 * largest)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_xla_equals_the_oracle(sizes, kind):
    dtype, scaled = DTYPES[kind]
    x_dtype = "float16" if dtype == "float16" else "bfloat16"
    given = operands(SIZES[sizes], dtype, scaled, x_dtype=x_dtype)
    check(lambda *given, **options: run("xla", *given, **options), given, x_dtype)


@needs_triton
@pytest.mark.parametrize(("sizes", "kind"), [
    ("ragged", "float8"), *(pytest.param(sizes, kind, marks=pytest.mark.sweep) for sizes in SIZES for kind in DTYPES
                            if (sizes, kind) != ("ragged", "float8"))])
def test_triton_equals_the_oracle(interpreter, sizes, kind):
    dtype, scaled = DTYPES[kind]
    x_dtype = "float16" if dtype == "float16" else "bfloat16"
    given = operands(SIZES[sizes], dtype, scaled, x_dtype=x_dtype)
    check(lambda *given, **options: interpreter.call(f"{__name__}:run", "triton", *given, **options), given, x_dtype)


@needs_native
@pytest.mark.parametrize("sizes", SIZES)
def test_the_native_one_has_the_bits_of_a_product_with_each_groups_weight(sizes, instruction_set):
    x, weights, counts, _ = operands(SIZES[sizes], rows=62, width=77, outputs=37)
    for dtype in ("float32", "bfloat16"):
        found = run("cpu", x, weights, counts, None, out_dtype=dtype)
        start = 0
        for group, count in enumerate(counts):
            wanted = matmul(jnp.asarray(x[start:start + count]), jnp.asarray(weights[group]), dtype, "cpu")
            np.testing.assert_array_equal(found[start:start + count], wanted.astype(jnp.float32))
            start += count
        assert not found[start:].any()


@pytest.mark.parametrize("name", ["xla", pytest.param("cpu", marks=needs_native), "oracle"])
@pytest.mark.parametrize("kind", ["I8", "Q8_0", "Q4_K"])
def test_quantized_groups_have_the_bits_of_a_product_with_each_groups_weight(name, kind):
    groups, outputs, inputs, counts = 4, 21, 256, (3, 0, 19, 1)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((30, inputs)), jnp.bfloat16)
    weight, scale = random_rows(kind, inputs, groups * outputs)
    found = jax.jit(quantized_grouped_matmul, static_argnums=(2, 5, 6))(
        x, weight, kind, jnp.asarray(counts, jnp.int32), scale, jnp.float32, name)
    start = 0
    for group, count in enumerate(counts):
        rows = slice(group * outputs, (group + 1) * outputs)
        wanted = quantized_matmul(x[start:start + max(count, 2)], weight[rows], kind,
                                  None if scale is None else scale[rows], jnp.float32, name)[:count]
        np.testing.assert_array_equal(found[start:start + count], wanted)
        start += count
    assert not found[start:].any()


@pytest.mark.parametrize(("changes", "message"), [
    ({"group_sizes": jnp.zeros(2)}, r"group_sizes must be int32 \[E\], got float32 \(2,\)"),
    ({"group_sizes": jnp.zeros(3, jnp.int32)}, r"weight must be \[E \* O, bytes\] with E = 3, got shape \(8, 34\)"),
    ({"x": jnp.zeros((4, 64), jnp.bfloat16)}, r"weight must be \[O, 68\]"),
    ({"scale": jnp.ones(8)}, "scale must be None"),
])
def test_a_wrong_argument_of_quantized_groups_is_named(changes, message):
    given = {"x": jnp.zeros((4, 32), jnp.bfloat16), "weight": jnp.zeros((8, 34), jnp.uint8), "kind": "Q8_0",
             "group_sizes": jnp.asarray([1, 3], jnp.int32)} | changes
    with pytest.raises(ValueError, match=message):
        quantized_grouped_matmul(**given)


@needs_native
@pytest.mark.parametrize(("shapes", "message"), [
    (((4, 32), (5, 32), (4, 2)), r"w\[E \* O, I\]"), (((17, 32), (4, 32), (17, 2)), "workspace is too small")])
def test_the_library_checks_shapes_itself(shapes, message):
    x, weight, y = shapes
    call = jax.ffi.ffi_call("pallas_kernels_grouped_matmul_v1", (jax.ShapeDtypeStruct(y, jnp.float32),
                                                                 jax.ShapeDtypeStruct((1024,), jnp.uint8)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call(jnp.zeros(x, jnp.bfloat16), jnp.zeros(weight, jnp.bfloat16),
                                   jnp.asarray([1, 1], jnp.int32)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sizes", [(5, 0, 17, 40, 300), (0, 1, 1, 0, 0), (128, 0, 3, 0, 0)])
def test_xla_rows_have_the_same_bits_in_any_company(sizes, dtype):
    x, weights, _, _ = operands(sizes, dtype, rows=362, x_dtype=dtype, outputs=5)
    group = 2
    alone = run("xla", np.tile(x[:1], (8, 1)), weights, np.array([0, 0, 1, 0, 0], np.int32), None, out_dtype="float32")
    whole = run("xla", np.concatenate([x[1:1 + sum(sizes[:group])], np.tile(x[:1], (sizes[group], 1)), x[70:]]),
                weights, np.asarray(sizes, np.int32), None, out_dtype="float32")
    found = whole[sum(sizes[:group]):][:sizes[group]]
    np.testing.assert_array_equal(found, np.tile(alone[:1], (sizes[group], 1)))
    assert not alone[1:].any()


@needs_triton
def test_triton_rows_have_the_same_bits_in_any_company(interpreter):
    x, weights, sizes, _ = operands((5, 0, 17, 40))
    whole = interpreter.call(f"{__name__}:run", "triton", x, weights, sizes, None, out_dtype="float32")
    part = interpreter.call(f"{__name__}:run", "triton", x[3:20], weights, np.array([2, 0, 15, 0], np.int32), None,
                            out_dtype="float32")
    np.testing.assert_array_equal(part, whole[3:20])


@needs_triton
def test_triton_takes_widths_that_are_no_multiple_of_a_tile(interpreter):
    given = operands((30, 9), rows=50, width=77, outputs=37)
    check(lambda *given, **options: interpreter.call(f"{__name__}:run", "triton", *given, **options), given, "bfloat16")


@pytest.mark.parametrize(("position", "wrong", "message"), [
    (0, np.zeros((3, 48), np.int32), r"x must be float32, bfloat16 or float16 \[T, I\], got int32"),
    (1, np.zeros((4, 40, 47), jnp.bfloat16), r"weights must be bfloat16 or float8_e4m3fn \[E, O, I\] with I = 48"),
    (2, np.zeros(3, np.int32), r"group_sizes must be int32 \[E\] = \[4\], got int32 \(3,\)"),
    (3, np.zeros((4, 3), np.float32), r"scales must be float32 \[E, O\] = \(4, 40\), got float32 \(4, 3\)"),
])
def test_a_wrong_argument_is_named(position, wrong, message):
    given = list(operands((3, 4, 0, 1)))
    given[position] = wrong
    with pytest.raises(ValueError, match=message):
        grouped_matmul(*(None if array is None else jnp.asarray(array) for array in given))


def test_triton_is_the_default_on_gpus_that_are_no_hopper_where_it_is_installed():
    names = registry.implementations("grouped_matmul")
    expected = "triton" if "triton" in names else "xla"
    assert registry.choose("grouped_matmul", platform="gpu").implementation.name == expected
