"""The product in Triton, in Triton's interpreter: right, and one order of sums for any number of rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels.triton_process import needs_triton

from pallas_kernels import matmul

pytestmark = needs_triton


def run(x, weight, out_dtype):
    """In the interpreter's process."""
    function = jax.jit(lambda x, weight: matmul(x, weight, out_dtype, implementation="triton"))
    return np.asarray(function(jnp.asarray(x), jnp.asarray(weight)))


@pytest.mark.parametrize(("shape", "dtype"), [((37, 48, 70), "bfloat16"), ((1, 77, 33), "float16")], ids=str)
def test_equals_the_product_in_float64(interpreter, shape, dtype):
    """Float32 sums of I products of magnitude near 1: a few units of 2^-24 of the largest, then one rounding."""
    rows, width, outputs = shape
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal(size).astype(jnp.dtype(dtype)) for size in ((rows, width), (outputs, width)))
    expected = x.astype(np.float64) @ weight.astype(np.float64).T
    wide = interpreter.call(f"{__name__}:run", x, weight, "float32")
    np.testing.assert_allclose(wide, expected, rtol=0, atol=2.0**-20 * np.abs(expected).max())
    np.testing.assert_array_equal(interpreter.call(f"{__name__}:run", x, weight, dtype), wide.astype(jnp.dtype(dtype)))


def test_rows_have_the_same_bits_in_any_number(interpreter):
    rng = np.random.default_rng(1)
    x, weight = (rng.standard_normal(size).astype(jnp.bfloat16) for size in ((40, 96), (33, 96)))
    whole = interpreter.call(f"{__name__}:run", x, weight, "float32")
    for first, last in ((0, 1), (17, 18), (5, 30)):
        np.testing.assert_array_equal(interpreter.call(f"{__name__}:run", x[first:last], weight, "float32"),
                                      whole[first:last])


def test_what_it_does_not_take_is_said(interpreter):
    x = np.zeros((2, 16), np.float32)
    with pytest.raises(RuntimeError, match="cannot compute this matmul: x is bfloat16 or float16, not float32"):
        interpreter.call(f"{__name__}:run", x, x, "float32")
