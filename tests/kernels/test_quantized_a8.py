"""Products of blocks with rows that are rounded to 8 bits, against the float64 oracle.

Sums in float32 differ from it by a few roundings of 2**-24, relative to the sum of what is added up, which for formats
with a minimum, or with codes that are shifted, exceeds the products of the numbers themselves.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.native import needs_native
from kernels.quantized_rows import A8, random_rows

from pallas_kernels import gated_matmul, quantized_gated_matmul, quantized_grouped_matmul, quantized_matmul
from pallas_kernels.gated_matmul import ACTIVATIONS
from pallas_kernels.quantized import FORMATS, ROUNDING
from pallas_kernels.quantized.oracle import rows_of
from pallas_kernels.quantized.xla import rounded

TOKENS = (1, 2, 3, 7, 8, 9, 16, 17, 33, 130, 530)
NATIVE = pytest.param("cpu", marks=needs_native)
SHAPES = {32: [(576, 96), (32, 3), (1568, 50), (768, 33)], 256: [(768, 130), (256, 1), (2304, 40), (5120, 17)]}
CASES = [pytest.param(kind, *shape, marks=() if shape in ((768, 130), (576, 96)) else pytest.mark.sweep)
         for kind in A8 for shape in SHAPES[FORMATS[kind].block]]

product = jax.jit(quantized_matmul, static_argnames=("kind", "out_dtype", "implementation"))
gated = jax.jit(quantized_gated_matmul, static_argnames=("kind", "activation", "implementation"))


def activations(tokens, inputs, seed=1):
    """Rows whose parts are of different sizes."""
    generator = np.random.default_rng(seed)
    sizes = np.exp(generator.normal(size=(tokens, inputs // 32, 1)))
    values = generator.normal(size=(tokens, inputs // 32, 32)) * sizes
    return jnp.asarray(values.reshape(tokens, inputs), jnp.bfloat16)


def assert_near_the_oracle(got, x, weight, kind):
    wanted = np.asarray(product(x, weight, kind, out_dtype=jnp.float32, implementation="oracle"), np.float64)
    rows = rows_of(weight, kind).astype(np.float64)
    largest = np.abs(rows).reshape(len(rows), -1, 32).max(-1, keepdims=True)  # of a block: its minimum is no larger
    terms = np.broadcast_to(largest, (*largest.shape[:2], 32)).reshape(rows.shape)
    magnitude = np.abs(np.asarray(rounded(x), np.float64)) @ terms.T
    assert (np.abs(np.asarray(got, np.float64) - wanted) <= 16 * 2.0**-24 * magnitude).all()


def assert_same_bits(actual, wanted):
    np.testing.assert_array_equal(np.asarray(actual, np.float32), np.asarray(wanted, np.float32))


@pytest.mark.parametrize(("kind", "inputs", "outputs"), CASES)
def test_products_are_near_the_oracle_and_have_the_same_bits_in_any_company(kind, inputs, outputs, instruction_set):
    weight, _ = random_rows(kind, inputs, outputs)
    x = activations(max(TOKENS), inputs)
    whole = np.asarray(product(x, weight, kind, out_dtype=jnp.float32, implementation="cpu"))
    assert_near_the_oracle(whole, x, weight, kind)
    for tokens in TOKENS:
        found = product(x[:tokens], weight, kind, out_dtype=jnp.float32, implementation="cpu")
        assert_same_bits(found, whole[:tokens])
        in_bfloat16 = product(x[:tokens], weight, kind, implementation="cpu")
        assert_same_bits(in_bfloat16, jnp.asarray(found).astype(jnp.bfloat16))


@pytest.mark.parametrize("kind", A8)
def test_xla_is_near_the_oracle(kind):
    weight, _ = random_rows(kind, 512, 14)
    for dtype in (jnp.bfloat16, jnp.float16, jnp.float32):
        x = activations(9, 512).astype(dtype)
        assert_near_the_oracle(product(x, weight, kind, out_dtype=jnp.float32, implementation="xla"), x, weight, kind)


@needs_native
@pytest.mark.parametrize("kind", A8)
def test_a_row_does_not_depend_on_its_place_among_outputs(kind):
    """Rows at the end of w, where fewer than a panel are left."""
    weight, _ = random_rows(kind, 768, 75)
    x = activations(40, 768)
    whole = product(x, weight, kind, out_dtype=jnp.float32, implementation="cpu")
    for first, last in ((0, 1), (3, 20), (70, 75), (33, 66)):
        part = product(x, weight[first:last], kind, out_dtype=jnp.float32, implementation="cpu")
        assert_same_bits(part, whole[:, first:last])


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("kind", A8)
def test_gated_products_are_the_gates_of_products(kind, activation, instruction_set):
    weight, _ = random_rows(kind, 768, 2 * 50)
    x = activations(40, 768)
    sums = product(x, weight, kind, implementation="cpu")
    identity = jnp.eye(100, dtype=jnp.bfloat16)
    for tokens in (1, 5, 16, 40):
        wanted = gated_matmul(sums[:tokens], identity, activation, implementation="cpu")
        assert_same_bits(gated(x[:tokens], weight, kind, activation=activation, implementation="cpu"), wanted)


@pytest.mark.parametrize("implementation", [NATIVE, "xla"])
@pytest.mark.parametrize("kind", A8)
def test_grouped_products_are_those_of_each_group(kind, implementation):
    weight, _ = random_rows(kind, 256, 3 * 20)
    x, sizes = activations(30, 256), jnp.asarray([9, 0, 18], jnp.int32)
    found = quantized_grouped_matmul(x, weight, kind, sizes, out_dtype=jnp.float32, implementation=implementation)
    for start, stop, group in ((0, 9, 0), (9, 27, 2)):
        own = weight[group * 20 : group * 20 + 20]
        if implementation == "cpu":
            assert_same_bits(found[start:stop], product(x[start:stop], own, kind, out_dtype=jnp.float32,
                                                        implementation="cpu"))
        assert_near_the_oracle(found[start:stop], x[start:stop], own, kind)
    assert not np.asarray(found[27:]).any()


@needs_native
@pytest.mark.parametrize("kind", A8)
def test_rows_of_zeros_at_the_end_are_zeros_and_change_no_others(kind, instruction_set):
    weight, _ = random_rows(kind, 768, 128)
    x = activations(9, 768)
    whole = product(x, weight, kind, out_dtype=jnp.float32, implementation="cpu")
    whole_gated = gated(x, weight, kind, implementation="cpu")
    for rows in (0, 1, 2, 3, 5, 8):
        padded = x[:8].at[rows:].multiply(0)
        assert_same_bits(product(padded, weight, kind, out_dtype=jnp.float32, implementation="cpu"),
                         whole[:8].at[rows:].set(0))
        assert_same_bits(gated(padded, weight, kind, implementation="cpu"), whole_gated[:8].at[rows:].set(0))


@pytest.mark.parametrize("implementation", [NATIVE, "xla"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("kind", ["Q4_1_A8", "Q8_0_A8", "Q6_K_A8"])
def test_a_value_that_is_no_number_spoils_its_row_alone(kind, value, implementation):
    weight, _ = random_rows(kind, 256, 33)
    x = activations(19, 256)
    options = {"kind": kind, "out_dtype": jnp.float32, "implementation": implementation}
    wanted = np.array(product(x, weight, **options))
    got = np.asarray(product(x.at[5, 40].set(value), weight, **options))
    assert np.isnan(got[5]).all()
    wanted[5] = np.nan
    assert_same_bits(got, wanted)


@pytest.mark.parametrize("implementation", [NATIVE, "xla", "oracle"])
def test_what_is_next_to_zero_is_zero(implementation):
    weight, _ = random_rows("Q4_1_A8", 64, 33)
    x = jnp.zeros((3, 64), jnp.bfloat16).at[1].set(2.0**-101).at[2].set(2.0**-100)
    got = np.asarray(product(x, weight, "Q4_1_A8", out_dtype=jnp.float32, implementation=implementation), np.float64)
    assert (got[:2] == 0).all()
    np.testing.assert_allclose(got[2], rows_of(weight, "Q4_1_A8").astype(np.float64).sum(-1) * 2.0**-100, rtol=1e-5)


@pytest.mark.parametrize("implementation", [NATIVE, "xla"])
def test_the_largest_codes_are_exact(implementation):
    """The sums of a block that are the furthest from zero, of the format with the largest codes."""
    inputs = 64
    weight, _ = random_rows("Q8_0_A8", inputs, 4)
    blocks = weight.reshape(4, 2, 34)
    for row, code in enumerate((127, 128, 0, 255)):  # 127, -128, 0, -1
        blocks[row, :, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
        blocks[row, :, 2:] = code
    x = jnp.full((1, inputs), 127, jnp.bfloat16)
    found = product(x, weight, "Q8_0_A8", out_dtype=jnp.float32, implementation=implementation)
    np.testing.assert_array_equal(found, np.float32(127 * inputs) * np.asarray([[127, -128, 0, -1]], np.float32))


def test_kinds_differ_in_what_they_do_with_x_alone():
    for kind in A8:
        stored = FORMATS[kind.removesuffix(ROUNDING)]
        assert (stored.block, stored.nbytes, stored.number) == (FORMATS[kind].block, FORMATS[kind].nbytes,
                                                                FORMATS[kind].number)
    assert {kind + ROUNDING for kind in FORMATS if not FORMATS[kind].rounds_x and kind != "I8"} == set(A8)
