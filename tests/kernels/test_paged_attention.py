"""Each implementation of ragged paged attention, against the oracle.

The oracle computes in float64, so the tolerance is the implementation's own rounding. float32: sums over up to 640
products, 2e-6 of the largest value. bfloat16 and float16: weights and output are each rounded to nearest in the dtype,
so half a unit in the last place twice, plus the float32 part. The lse is float32 throughout. int8 pools are read as
what they hold, by queries in bfloat16: the oracle gets the quantized numbers, and values get bfloat16's tolerance.
Native kernels round queries to whole numbers of 16 bits: half of 1 / 32512 of the largest of a query, times each of 64
numbers near 1 of a key, added up at random, moves a logit by 1e-4.

Everything that must not be read is NaN in these cases (see `paged_cases.build`), so a stray read fails them too.
"""

from __future__ import annotations

import numpy as np
import pytest
from kernels import paged_cases as pc
from kernels.native import IMPLEMENTATIONS, needs_native

UNIT = {"float32": 2e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11, "int8": 2.0**-8, "float8_e4m3fn": 2.0**-8}
LSE = {"float32": 2e-5, "bfloat16": 2e-5, "float16": 2e-5, "int8": 3e-4, "float8_e4m3fn": 2e-5}
MIXED = ([1, 0, 7, 1, 70, 1, 1], [17, 0, 20, 600, 300, 1, 257], 128)


def check(implementation, shape, counts, lengths, num_tokens, *, seed=0, build=None, **options):
    rng = np.random.default_rng(seed)
    if options.pop("with_sinks", False):
        options["sinks"] = rng.standard_normal(shape.num_heads) * 2
    case = pc.build(rng, shape, counts, lengths, num_tokens, window=options.get("window"), **(build or {}))
    out, lse = pc.attend(case, implementation, **options)
    expected, expected_lse = pc.expected(case, **options)
    np.testing.assert_allclose(out, expected, rtol=0, atol=UNIT[shape.dtype] * case.largest)
    real = case.num_real
    np.testing.assert_allclose(lse[:real], expected_lse[:real], rtol=0, atol=LSE[shape.dtype])
    assert (out[real:] == 0).all()
    assert (lse[real:] == -np.inf).all()


OPTIONS = {
    "plain": {},
    "window smaller than a block": {"window": 5},
    "window of one": {"window": 1},
    "window of several groups": {"window": 300},
    "soft cap": {"soft_cap": 2.0},
    "sinks": {"with_sinks": True},
    "all": {"window": 100, "soft_cap": 5.0, "with_sinks": True},
}
@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request):
    return request.param


@pytest.mark.parametrize(("implementation", "dtype"), pc.kinds("bfloat16", "int8"))
@pytest.mark.parametrize("option", OPTIONS)
def test_mixed_step_equals_the_oracle_in_bfloat16_and_int8(implementation, option, dtype):
    check(implementation, pc.Shape(dtype=dtype), *MIXED, **OPTIONS[option])


@pytest.mark.parametrize(("dtype", "option"), [
    (dtype, option) if option in ("plain", "all")[dtype == "float8_e4m3fn" :]
    else pytest.param(dtype, option, marks=pytest.mark.sweep)
    for dtype in ("float32", "float16", "float8_e4m3fn") for option in OPTIONS])
def test_mixed_step_equals_the_oracle_in_other_dtypes(option, dtype):
    check("xla", pc.Shape(dtype=dtype), *MIXED, **OPTIONS[option])


SLOPES = 2.0 ** -np.arange(1, 10)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", pytest.param("int8", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("options", [{}, {"window": 100, "soft_cap": 5.0, "with_sinks": True}], ids=["plain", "all"])
def test_linear_biases_equal_the_oracle(options, dtype):
    check("xla", pc.Shape(9, 3, dtype=dtype), *MIXED, alibi_slopes=SLOPES.astype(np.float32), **options)


@needs_native
def test_linear_biases_are_left_to_xla_by_native_kernels():
    case = pc.build(np.random.default_rng(0), pc.Shape(9, 3), [1, 5], [7, 5], 8)
    slopes = SLOPES.astype(np.float32)
    for found, wanted in zip(*(pc.attend(case, name, alibi_slopes=slopes) for name in (None, "xla")), strict=True):
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ValueError, match="alibi_slopes"):
        pc.attend(case, "cpu", alibi_slopes=slopes)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_latents_of_deepseeks_size_equal_the_oracle(dtype):
    """Tolerance of the lse: sums of 576 products, twice the square root of those of 64 numbers."""
    shape = pc.Shape(16, 1, 576, 16, dtype, blocks_per_row=40)
    case = pc.build(np.random.default_rng(0), shape, [1, 7, 1, 40], [17, 20, 600, 300], 64)
    out, lse = pc.attend(case, None)
    expected, expected_lse = pc.expected(case)
    np.testing.assert_allclose(out, expected, rtol=0, atol=UNIT[dtype] * case.largest)
    np.testing.assert_allclose(lse[:49], expected_lse[:49], rtol=0, atol=3 * LSE[dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", pytest.param("int8", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("options", [{"chunk": 100}, {"chunk": 5, "soft_cap": 5.0, "with_sinks": True}], ids=str)
def test_chunks_of_positions_equal_the_oracle(options, dtype):
    check("xla", pc.Shape(9, 3, dtype=dtype), *MIXED, **options)


@needs_native
def test_chunks_are_left_to_xla_by_native_kernels():
    case = pc.build(np.random.default_rng(0), pc.Shape(9, 3), [1, 5], [7, 5], 8)
    for found, wanted in zip(*(pc.attend(case, name, chunk=3) for name in (None, "xla")), strict=True):
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ValueError, match="chunk"):
        pc.attend(case, "cpu", chunk=3)


HEADS = [(9, 3, 64), (4, 4, 64), (8, 1, 80), (4, 2, 96), (4, 1, 128), (1, 1, 64)]


@pytest.mark.sweep
@pytest.mark.parametrize(("implementation", "dtype"), pc.kinds("bfloat16", "float32", "int8"))
@pytest.mark.parametrize(
    ("heads", "block_size"), [(heads, 16) for heads in HEADS] + [(HEADS[0], size) for size in (8, 24, 32, 64, 512)]
)
def test_heads_and_blocks_of_any_shape(implementation, heads, block_size, dtype):
    shape = pc.Shape(*heads, block_size, dtype, blocks_per_row=-(-640 // block_size))
    check(implementation, shape, *MIXED)
    check(implementation, shape, *MIXED, window=33, soft_cap=4.0, with_sinks=True)


@pytest.mark.parametrize(
    ("implementation", "shape"),
    [
        ("xla", pc.Shape(8, 1, 80, 64, "float32", blocks_per_row=10)),
        ("xla", pc.Shape(3, 3, 128, 8, "bfloat16", blocks_per_row=80)),
        pytest.param("cpu", pc.Shape(8, 1, 80, 24, blocks_per_row=27), marks=needs_native),
        pytest.param("cpu", pc.Shape(3, 3, 128, 8, blocks_per_row=80), marks=needs_native),
        pytest.param("cpu", pc.Shape(20, 1, 256, 32, blocks_per_row=20), marks=needs_native),
        ("xla", pc.Shape(8, 1, 80, 64, "int8", blocks_per_row=10)),
        pytest.param("cpu", pc.Shape(8, 1, 80, 24, "int8", blocks_per_row=27), marks=needs_native),
        pytest.param("cpu", pc.Shape(20, 1, 256, 32, "int8", blocks_per_row=20), marks=needs_native),
        pytest.param("cpu", pc.Shape(3, 3, 16, 8, "int8", blocks_per_row=80), marks=needs_native),
    ],
    ids=["one kv head", "no grouping", "blocks that are no multiple of a tile", "native, no grouping", "largest heads",
         "one kv head, int8", "blocks that are no multiple of a tile, int8", "largest heads, int8",
         "smallest heads, int8"],
)
def test_representative_heads_and_blocks(implementation, shape):
    check(implementation, shape, *MIXED)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 255, 256, 257, 512, 513])
@pytest.mark.parametrize("count", [1, 2])
def test_lengths_around_block_and_group_boundaries(implementation, length, count):
    if count <= length:
        check(implementation, pc.Shape(), [0, count, 0], [0, length, 0], 8, seed=length)


@pytest.mark.parametrize("counts", [[0, 0, 0], [1, 1, 1], [8, 0, 0], [0, 0, 8], [3, 1, 4], [0, 5, 1]])
def test_rows_may_be_idle_decoding_or_prefilling_in_any_slot(implementation, counts):
    lengths = [count + 30 * row if count else 0 for row, count in enumerate(counts)]
    check(implementation, pc.Shape(), counts, lengths, 8)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 100])
def test_any_number_of_tokens(implementation, num_tokens):
    counts = [1, num_tokens - 1, 0]
    check(implementation, pc.Shape(), counts, [5, 40 + num_tokens if num_tokens > 1 else 0, 0], num_tokens)


def test_more_decode_rows_than_a_tile_with_lengths_that_differ(implementation):
    rng = np.random.default_rng(3)
    counts = [int(rng.random() < 0.8) for _ in range(37)]
    lengths = [int(rng.integers(1, 400)) if count else 0 for count in counts]
    check(implementation, pc.Shape(), counts, lengths, 64)


def test_rows_share_the_blocks_of_a_common_prefix(implementation):
    check(implementation, pc.Shape(), [1, 1, 20], [40, 64, 60], 32, build={"shared_blocks": 2})


@pytest.mark.parametrize("garbage", [np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_infinite_and_huge_garbage_is_not_read_either(implementation, garbage, dtype):
    check(implementation, pc.Shape(dtype=dtype), [1, 9], [30, 40], 16, build={"garbage": garbage})


@pytest.mark.parametrize(("implementation", "dtype"), [
    ("xla", "float16"), ("xla", "float32"), ("xla", "bfloat16"), pytest.param("cpu", "bfloat16", marks=needs_native)])
def test_scales_of_any_size_are_applied_in_float32(implementation, dtype):
    """Weights times scales of 1e-6 would vanish in float16; scores of scales of 1e4 would overflow there."""
    rng = np.random.default_rng(5)
    case = pc.build(rng, pc.Shape(dtype="int8"), [1, 9], [300, 40], 16)
    case.q = case.q.astype(pc.Shape(dtype=dtype).numpy_dtype)
    case.v_pool.scales[:] *= 1e-6
    case.k_pool.scales[:] *= 1e4
    out, lse = pc.attend(case, implementation, soft_cap=5.0)
    expected, expected_lse = pc.expected(case, soft_cap=5.0)
    smallest = 2.0**-25 if dtype == "float16" else 0  # half a step between numbers near zero
    np.testing.assert_allclose(out[:10], expected[:10], rtol=0, atol=UNIT[dtype] * case.largest * 1e-6 + smallest)
    np.testing.assert_allclose(lse[:10], expected_lse[:10], rtol=0, atol=2e-5)


def test_large_logits_do_not_overflow():
    rng = np.random.default_rng(4)
    shape = pc.Shape(dtype="float32")
    case = pc.build(rng, shape, [1, 9], [300, 40], 16)
    case.q *= 1e4
    out, lse = pc.attend(case, "xla")
    expected, expected_lse = pc.expected(case)
    assert np.isfinite(out).all()
    # Logits near 1e5 carry float32 errors near 1e-2, so only what is insensitive to them is compared.
    np.testing.assert_allclose(lse[:10], expected_lse[:10], rtol=1e-6)
    assert np.mean(np.abs(out[:10] - expected[:10]) < 1e-3) > 0.95
