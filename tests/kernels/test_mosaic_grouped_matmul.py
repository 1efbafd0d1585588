"""Grouped products in Mosaic GPU, in JAX's GPU interpreter with its race detector, against float64.

Weights of groups without rows are NaN, and so are the rows past the last group: neither may be read into a result.
Tolerances are those of test_grouped_matmul.py. Columns are few, so that these small products are several tiles. (Bits
are not compared: the interpreter's dots are XLA's, whose rows depend on each other.)
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from kernels.mosaic_interpreter import multiply

from pallas_kernels import registry
from pallas_kernels.aot.gpus import lowering_for
from pallas_kernels.grouped_matmul import oracle
from pallas_kernels.grouped_matmul.mosaic_kernel import columns_of
from pallas_kernels.mosaic_gpu.tiles import GROUPED_MATMUL, MatmulTiles

FEW = MatmulTiles(columns=128, down=1, across=2, inner=64, stages=2)
MANY = MatmulTiles(columns=64, down=2, across=1, inner=64, stages=2)
TILES = {"few": FEW, "many": MANY}
SIZES = {
    "ragged": ((5, 0, 17, 1, 16, 0, 20, 3), 62),
    "several tiles of a group": ((3, 150, 0, 60), 230),
    "whole tiles": ((128, 64), 192),
    "rows past the last group": ((3, 4, 0, 1), 150),
    "one group has all": ((0, 0, 62, 0), 62),
    "no rows": ((0, 0), 20),
    "a row": ((0, 1), 1),
}


def operands(sizes, rows, dtype="bfloat16", width=128, outputs=128):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, width)).astype(jnp.dtype(dtype))
    weights = rng.standard_normal((len(sizes), outputs, width)).astype(jnp.dtype(dtype))
    x[sum(sizes):] = np.nan
    weights[np.asarray(sizes) == 0] = np.nan
    return x, weights, np.asarray(sizes, np.int32)


def check(given, tiles, out_dtype="bfloat16"):
    x, weights, sizes = given
    expected = oracle.multiply(x[: sizes.sum()], np.where(sizes[:, None, None] == 0, 0, weights), sizes)
    largest = max(np.abs(expected).max(initial=0), 1e-9)
    found = multiply(*given, out_dtype, tiles)
    np.testing.assert_allclose(
        found[: sizes.sum()], expected, rtol=float(jnp.finfo(out_dtype).eps), atol=2.0**-20 * largest)
    assert not found[sizes.sum():].any()


FEWER = ("several tiles of a group", "rows past the last group")


@pytest.mark.parametrize(("sizes", "tiles"), [
    (sizes, tiles) if (sizes, tiles) in (("ragged", "few"), ("several tiles of a group", "many"))
    else pytest.param(sizes, tiles, marks=pytest.mark.sweep)
    for sizes in SIZES for tiles in TILES if tiles == "few" or sizes in FEWER])
def test_equals_the_oracle(sizes, tiles):
    check(operands(*SIZES[sizes]), TILES[tiles])


@pytest.mark.sweep
@pytest.mark.parametrize(("outputs", "tiles", "out_dtype"), [
    (384, "few", "float16"), (192, "many", "float16"), (320, "few", "float32"), (64, "many", "float32")])
def test_float16_and_several_columns_of_tiles(outputs, tiles, out_dtype):
    check(operands((30, 9), 50, "float16", 64, outputs), TILES[tiles], out_dtype)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("tiles", GROUPED_MATMUL["hopper"])
def test_rows_of_results_begin_where_copies_may(tiles, itemsize):
    """TMA takes addresses in shared memory that are multiples of 128; nothing checks that without a GPU."""
    chosen = GROUPED_MATMUL["hopper"][tiles]
    for outputs in (64, 768, 1536, 2048, 2880, 5760):
        columns = columns_of(outputs, chosen, itemsize)
        assert columns is not None or (tiles == "few" and outputs % 128 != 0)
        assert columns is None or (columns * itemsize % 128 == 0 and outputs % (columns * chosen.across) == 0)
        staged = 2 * 64 * (columns or 0) * itemsize
        ring = chosen.stages * 64 * 2 * 64 * chosen.down + chosen.stages * 64 * 2 * (columns or 0) * chosen.across
        assert staged + ring < 227 * 1024


def operands_of(dtype=jnp.bfloat16, weights_dtype=None, outputs=128, scales=None):
    return {"x": jnp.zeros((4, 64), dtype), "weights": jnp.zeros((2, outputs, 64), weights_dtype or dtype),
            "group_sizes": jnp.zeros(2, jnp.int32), "scales": scales, "out_dtype": np.dtype("float32")}


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_it_is_the_default_on_hopper(gpu):
    with lowering_for(gpu):
        assert registry.choose("grouped_matmul", operands=operands_of()).implementation.name == "pallas"
    assert {tiles.down * tiles.across for tiles in GROUPED_MATMUL["hopper"].values()} == {2}
    assert all(tiles.stages >= 2 for tiles in GROUPED_MATMUL["hopper"].values())


@pytest.mark.parametrize(("operands", "reason"), [
    (operands_of(jnp.float32), "bfloat16 or float16 by the same, not float32 by float32"),
    (operands_of(weights_dtype=jnp.float8_e4m3fn), "not bfloat16 by float8_e4m3fn"),
    (operands_of(outputs=100), "outputs and inputs are multiples of 64, not 100 and 64"),
    (operands_of(scales=jnp.ones((2, 128))), "it takes no scales")])
def test_what_it_does_not_take_is_left_to_others(operands, reason):
    with lowering_for("h200"):
        assert registry.choose("grouped_matmul", operands=operands).implementation.name != "pallas"
        with pytest.raises(ValueError, match=reason):
            registry.choose("grouped_matmul", "pallas", operands=operands)
