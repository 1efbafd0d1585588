"""Products with quantized weights have the bits of products with the decoded weights, at every shape; of I8, those of
exact integers.

Oracles: ``gguf.quants.dequantize`` for the formats (equality to the bit), and the native `matmul` and `gated_matmul` of
the decoded weights for the products (equality to the bit); of I8 the product in integers (equality to the bit). Against
the float64 oracle the tolerance is `matmul`'s: sums in float32 differ by a few roundings of 2**-24, relative to the sum
of the products' magnitudes.
"""

from __future__ import annotations

import os
import subprocess
import sys

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import needs_native
from kernels.quantized_rows import DECODED, random_rows

from pallas_kernels import dequantize, gated_matmul, matmul, quantized_gated_matmul, quantized_matmul
from pallas_kernels.gated_matmul import ACTIVATIONS
from pallas_kernels.quantized import FORMATS
from pallas_kernels.quantized.oracle import rows_of

TOKENS = (1, 7, 8, 16, 17, 33, 130, 300, 530)
SHAPES = [(256, 40), (768, 130), (1536, 33), (256, 1), (512, 7), (2304, 64)]
SMALL_BLOCK_SHAPES = [(576, 96), (32, 3), (1568, 50)]

product = jax.jit(quantized_matmul, static_argnames=("kind", "out_dtype", "implementation"))
gated = jax.jit(quantized_gated_matmul, static_argnames=("kind", "activation", "implementation"))
plain_product = jax.jit(matmul, static_argnames=("out_dtype", "implementation"))
plain_gated = jax.jit(gated_matmul, static_argnames=("activation", "implementation"))


def shapes_of(kind):
    return SHAPES + (SMALL_BLOCK_SHAPES if FORMATS[kind].block <= 32 else [])


CASES = [pytest.param(kind, *shape, marks=() if shape in ((768, 130), (576, 96)) else pytest.mark.sweep)
         for kind in DECODED for shape in shapes_of(kind)]


def activations(tokens, inputs, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(tokens, inputs)), jnp.bfloat16)


def decoded(kind, weight):
    return jnp.asarray(rows_of(weight, kind)).astype(jnp.bfloat16)


def expected(kind, x, weight, scale, out_dtype):
    """The native product with decoded weights; of I8 that of integers."""
    if scale is None:
        return plain_product(x, decoded(kind, weight), out_dtype, "cpu")
    return product(x, weight, kind, scale, out_dtype, "oracle")


def assert_same_bits(actual, wanted):
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    assert actual.dtype == wanted.dtype
    np.testing.assert_array_equal(actual.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("kind", [kind for kind in DECODED if kind != "I8"])
def test_formats_are_those_of_the_gguf_package(kind):
    layout, theirs = FORMATS[kind], gguf.GGMLQuantizationType[kind]
    assert (theirs.value, *gguf.GGML_QUANT_SIZES[theirs]) == (layout.number, layout.block, layout.nbytes)
    weight, _ = random_rows(kind, 512, 9)
    wanted = gguf.quants.dequantize(weight, theirs)
    assert_same_bits(rows_of(weight, kind), wanted)
    assert_same_bits(jax.jit(dequantize, static_argnums=1)(weight, kind), wanted)


def test_rows_of_i8_are_codes_times_factors():
    weight, scale = random_rows("I8", 40, 9)
    wanted = weight.view(np.int8).astype(np.float32) * scale[:, None]
    assert_same_bits(dequantize(weight, "I8", scale), wanted)


@pytest.mark.parametrize(("kind", "inputs", "outputs"), CASES)
def test_products_have_the_bits_of_those_with_decoded_weights(kind, inputs, outputs, instruction_set):
    weight, scale = random_rows(kind, inputs, outputs)
    x = activations(max(TOKENS), inputs)
    for out_dtype in (jnp.bfloat16, jnp.float32):
        wanted = np.asarray(expected(kind, x, weight, scale, out_dtype))
        for tokens in TOKENS:
            assert_same_bits(product(x[:tokens], weight, kind, scale, out_dtype, "cpu"), wanted[:tokens])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("kind", "inputs", "outputs"), CASES)
def test_gated_products_have_the_bits_of_those_with_decoded_weights(kind, inputs, outputs, activation, instruction_set):
    weight, scale = random_rows(kind, inputs, 2 * outputs)
    x = activations(max(TOKENS), inputs)
    if scale is None:
        wanted = np.asarray(plain_gated(x, decoded(kind, weight), activation, "cpu"))
    else:
        sums = expected(kind, x, weight, scale, jnp.bfloat16)
        wanted = np.asarray(plain_gated(sums, jnp.eye(2 * outputs, dtype=jnp.bfloat16), activation, "cpu"))
    for tokens in TOKENS:
        assert_same_bits(gated(x[:tokens], weight, kind, scale, activation, "cpu"), wanted[:tokens])


@pytest.mark.parametrize("kind", DECODED)
def test_rows_of_zeros_at_the_end_are_zeros_and_change_no_others(kind, instruction_set):
    weight, scale = random_rows(kind, 768, 128)
    x = activations(9, 768)
    whole = product(x, weight, kind, scale, jnp.float32, "cpu")
    whole_gated = gated(x, weight, kind, scale, "silu", "cpu")
    for rows in (0, 1, 2, 3, 5, 8):
        padded = x[:8].at[rows:].multiply(0)
        assert_same_bits(product(padded, weight, kind, scale, jnp.float32, "cpu"), whole[:8].at[rows:].set(0))
        assert_same_bits(gated(padded, weight, kind, scale, "silu", "cpu"), whole_gated[:8].at[rows:].set(0))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("kind", DECODED)
def test_xla_is_near_the_oracle(kind, dtype):
    weight, scale = random_rows(kind, 256, 14)
    x = activations(9, 256).astype(dtype)
    magnitude = np.abs(np.asarray(x, np.float64)) @ np.abs(rows_of(weight, kind).astype(np.float64)).T
    magnitude *= 1 if scale is None else scale
    got = np.asarray(product(x, weight, kind, scale, jnp.float32, "xla"), np.float64)
    wanted = np.asarray(product(x, weight, kind, scale, jnp.float32, "oracle"), np.float64)
    assert (np.abs(got - wanted) <= 16 * 2.0**-24 * magnitude).all()
    # Two roundings to the dtype at most one unit apart each, and the gate's own.
    unit = float(jnp.finfo(dtype).eps)
    for activation in ACTIVATIONS:
        got, wanted = (np.asarray(gated(x, weight, kind, scale, activation, name), np.float64)
                       for name in ("xla", "oracle"))
        np.testing.assert_allclose(got, wanted, rtol=8 * unit, atol=8 * unit * np.abs(wanted).max())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("inputs", [7, 576, 2500])
def test_int8_in_xla_has_the_bits_of_integers(inputs, dtype):
    weight, scale = random_rows("I8", inputs, 20)
    weight[0], weight[1] = 127, 128  # the largest sums of either sign
    x = activations(21, inputs).astype(dtype).at[3].set(1).at[4].set(0)
    assert_same_bits(*(product(x, weight, "I8", scale, jnp.float32, name) for name in ("xla", "oracle")))


@pytest.mark.parametrize("implementation", [pytest.param("cpu", marks=needs_native), "xla"])
def test_the_largest_sums_of_int8_fit(implementation):
    inputs = 131_040  # of whole steps
    weight, scale = np.full((2, inputs), 128, np.uint8), np.ones(2, np.float32)
    x = jnp.ones((1, inputs), jnp.bfloat16)
    assert_same_bits(*(product(x, weight, "I8", scale, jnp.float32, name) for name in (implementation, "oracle")))


@pytest.mark.parametrize("implementation", [pytest.param("cpu", marks=needs_native), "xla"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_int8_of_a_value_that_is_no_number_spoils_its_row_alone(value, implementation):
    weight, scale = random_rows("I8", 96, 33)
    x = activations(19, 96)
    wanted = np.array(product(x, weight, "I8", scale, jnp.float32, implementation))
    got = np.asarray(product(x.at[5, 40].set(value), weight, "I8", scale, jnp.float32, implementation))
    assert np.isnan(got[5]).all()
    wanted[5] = np.nan
    assert_same_bits(got, wanted)


@pytest.mark.parametrize("implementation", [pytest.param("cpu", marks=needs_native), "xla", "oracle"])
def test_int8_of_rows_that_are_next_to_zero_is_zero(implementation):
    weight, scale = random_rows("I8", 96, 33)
    x = jnp.zeros((3, 96), jnp.bfloat16).at[1].set(2.0**-101).at[2].set(2.0**-100)
    got = np.asarray(product(x, weight, "I8", scale, jnp.float32, implementation))
    assert (got[:2] == 0).all()
    sums = weight.view(np.int8).astype(np.float64).sum(-1)
    np.testing.assert_allclose(got[2], sums * scale * 2.0**-100, rtol=1e-6)


PRODUCTS_IN_A_PROCESS = """
import hashlib, os, sys
os.sched_setaffinity(0, [int(core) for core in sys.argv[1:]])
import jax.numpy as jnp, numpy as np
from pallas_kernels import quantized_matmul
generator = np.random.default_rng(0)
weight = np.tile(np.arange(360, dtype=np.uint8) % 60, (700, 1))
parts = [np.asarray(quantized_matmul(jnp.asarray(generator.normal(size=(rows, 576)), jnp.bfloat16), weight, "Q4_1"))
         for rows in (1, 9, 40, 600)]
assert all(np.isfinite(part.astype(np.float32)).all() for part in parts)
print(hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest())
"""


@needs_native
def test_the_bits_do_not_depend_on_the_number_of_threads():
    cores = sorted(os.sched_getaffinity(0))
    hashes = [subprocess.run([sys.executable, "-c", PRODUCTS_IN_A_PROCESS, *map(str, some)], capture_output=True,
                             text=True, check=True).stdout for some in (cores, cores[:1])]
    assert hashes[0] == hashes[1]


@needs_native
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("rows", "outputs"), [(0, 5), (5, 0)])
def test_nothing_in_nothing_out(kind, rows, outputs):
    weight, scale = random_rows(kind, 256, 2 * outputs)
    x = activations(rows, 256)
    assert product(x, weight, kind, scale, None, "cpu").shape == (rows, 2 * outputs)
    assert gated(x, weight, kind, scale, "silu", "cpu").shape == (rows, outputs)


X, BYTES = jnp.zeros((4, 32), jnp.bfloat16), np.zeros((6, 18), np.uint8)


@pytest.mark.parametrize(("x", "weight", "kind", "scale", "message"), [
    (X, BYTES, "Q5_K", None, "kind='Q5_K' is not known; there are Q4_0"),
    (X, BYTES[0], "Q4_0", None, r"weight must be uint8 \[O, bytes\], whole blocks of 18 bytes"),
    (X, BYTES.astype(np.int8), "Q4_0", None, "got int8"),
    (X, BYTES[:, :17], "Q4_0", None, "whole blocks of 18 bytes"),
    (X[:, :30], BYTES, "Q4_0", None, "a row of 30 numbers does not divide into blocks of 32"),
    (jnp.zeros((4, 64), jnp.bfloat16), BYTES, "Q4_0", None, r"weight must be \[O, 36\]"),
    (X[0], BYTES, "Q4_0", None, r"x must be \[T, I\]"),
    (X.astype(jnp.int32), BYTES, "Q4_0", None, "x must be float32, bfloat16 or float16, got int32"),
    (X, BYTES, "Q4_0", np.zeros(6, np.float32), "scale must be None for kind='Q4_0'"),
    (X[:, :18], BYTES, "I8", None, r"scale must be float32 \[O\] for kind='I8'"),
    (X[:, :18], BYTES, "I8", np.zeros(5, np.float32), r"scale must be float32 \[6\]"),
    (jnp.zeros((1, 2**17), jnp.bfloat16), np.zeros((1, 2**17), np.uint8), "I8", np.zeros(1, np.float32),
     "x must have at most 131,071 inputs for kind='I8'"),
])
def test_a_wrong_argument_is_named(x, weight, kind, scale, message):
    with pytest.raises(ValueError, match=message):
        quantized_matmul(x, weight, kind, scale)


def test_a_gated_product_needs_two_halves():
    with pytest.raises(ValueError, match=r"weight must be \[2 \* F, bytes\]"):
        quantized_gated_matmul(X, BYTES[:5], "Q4_0")


@needs_native
@pytest.mark.parametrize(("x", "dtype", "message"), [
    (X.astype(jnp.float32), None, "x is bfloat16, not float32"),
    (X, jnp.float16, "results are bfloat16 or float32, not float16"),
])
def test_what_the_library_does_not_take_is_said(x, dtype, message):
    with pytest.raises(ValueError, match=message):
        quantized_matmul(x, BYTES, "Q4_0", None, dtype, "cpu")


def test_i8_of_any_number_of_inputs_is_left_to_xla():
    weight, scale = random_rows("I8", 48, 6)
    x = activations(8, 48)
    assert_same_bits(product(x, weight, "I8", scale), product(x, weight, "I8", scale, None, "xla"))


@needs_native
@pytest.mark.parametrize(("weight", "scale", "y", "kind", "workspace", "message"), [
    ((6, 18), 0, (4, 6), 99, 1024, "kind is not known"),
    ((6, 18), 0, (4, 6), 30, 1024, "kind is not known"),
    ((6, 18), 0, (4, 6), 256 + 99, 1024, "kind is not known"),
    ((6, 32), 6, (4, 6), 256 + 24, 4096, "beside blocks alone"),
    ((6, 18), 0, (4, 6), 256 + 2, 703, "the workspace is too small"),
    ((6, 18), 0, (4, 6), 12, 1024, "whole blocks"),
    ((6, 20), 0, (4, 6), 2, 1024, "shapes must be"),
    ((6, 18), 0, (4, 5), 2, 1024, "shapes must be"),
    ((6, 18), 6, (4, 6), 2, 1024, "scale must be empty"),
    ((6, 32), 6, (4, 6), 24, 1599, "the workspace is too small"),
    ((6, 32), 5, (4, 6), 24, 1024, "scale must have one number for each row"),
    ((6, 18), 0, (4, 6), 2, 1023, "the workspace is too small"),
])
def test_the_library_checks_shapes_itself(weight, scale, y, kind, workspace, message):
    call = jax.ffi.ffi_call("pallas_kernels_quantized_matmul_v1", (
        jax.ShapeDtypeStruct(y, jnp.bfloat16), jax.ShapeDtypeStruct((workspace,), jnp.uint8)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call(X, jnp.zeros(weight, jnp.uint8), jnp.zeros(scale, jnp.float32), kind=kind))
