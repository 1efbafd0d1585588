"""Ragged paged attention in Mosaic GPU, in JAX's GPU interpreter, against the oracle.

The oracle computes in float64. bfloat16 and float16: weights and output are each rounded to nearest in the dtype, half
a unit in the last place twice; the lse is float32 throughout. Everything that must not be read is NaN in these cases
(`paged_cases.build`), and the interpreter fails them for races and for barriers that do not match.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from kernels import mosaic_interpreter as mosaic
from kernels import paged_cases as pc

from pallas_kernels.mosaic_gpu.tiles import ATTENTION, SCALED_ATTENTION, AttentionTiles

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "int8": 2.0**-7, "float8_e4m3fn": 2.0**-7}
"""By the dtype of a case. Over pools in bytes it is twice bfloat16's: weights times scales are rounded to bfloat16, as
the output is, each by up to 2^-8 of itself, and with a single key neither rounding averages out."""
SMALL_SHAPE = pc.Shape(4, 2, 64, 16, blocks_per_row=20)
SCALED = ["int8", "float8_e4m3fn"]


def check(shape, counts, lengths, num_tokens, *, tiles=mosaic.SMALL, seed=0, build=None, queries=None, **options):
    rng = np.random.default_rng(seed)
    if options.pop("with_sinks", False):
        options["sinks"] = rng.standard_normal(shape.num_heads) * 2
    case = pc.build(rng, shape, counts, lengths, num_tokens, window=options.get("window"), **(build or {}))
    if queries is not None:
        case = dataclasses.replace(case, q=case.q.astype(queries))
    out, lse = mosaic.attend(case, tiles=tiles, **options)
    expected, expected_lse = pc.expected(case, **options)
    np.testing.assert_allclose(out, expected, rtol=0, atol=UNIT[shape.dtype] * case.largest)
    real = case.num_real
    np.testing.assert_allclose(lse[:real], expected_lse[:real], rtol=0, atol=2e-5)
    assert (out[real:] == 0).all()
    assert (lse[real:] == -np.inf).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", pytest.param("float8_e4m3fn", marks=pytest.mark.sweep)])
def test_a_mixed_step_with_every_option_equals_the_oracle(dtype):
    """An idle row, a short and a split decode, chunks of one tile and of two; everything that an option changes."""
    shape = dataclasses.replace(SMALL_SHAPE, dtype=dtype)
    check(shape, [1, 0, 7, 1, 70], [17, 0, 20, 300, 190], 96, window=150, soft_cap=5.0, with_sinks=True)


@pytest.mark.sweep
@pytest.mark.parametrize("options", [
    {}, {"window": 5}, {"window": 1}, {"window": 140}, {"soft_cap": 2.0}, {"with_sinks": True}],
    ids=["plain", "window smaller than a block", "window of one", "window of two splits", "soft cap", "sinks"])
def test_each_option_equals_the_oracle(options):
    check(SMALL_SHAPE, [1, 0, 7, 1, 70], [17, 0, 20, 300, 190], 96, **options)


@pytest.mark.sweep
@pytest.mark.parametrize(("heads", "block_size", "dtype"), [
    ((4, 2, 64), 32, "float16"), ((6, 2, 64), 64, "bfloat16"), ((3, 3, 64), 128, "bfloat16"),
    ((16, 1, 128), 256, "bfloat16"), ((5, 1, 256), 64, "bfloat16"), ((80, 1, 64), 32, "bfloat16")],
    ids=str)
def test_heads_blocks_and_dtypes_equal_the_oracle(heads, block_size, dtype):
    shape = pc.Shape(*heads, block_size, dtype, blocks_per_row=-(-320 // block_size))
    check(shape, [1, 0, 7, 1], [17, 0, 20, 300], 12, tiles=ATTENTION["hopper"][heads[2]]
          if heads[2] != 64 else mosaic.SMALL)


@pytest.mark.sweep
@pytest.mark.parametrize(("dtype", "options"), [
    ("int8", {}), ("float8_e4m3fn", {}), ("float8_e4m3fn", {"window": 5}), ("int8", {"window": 1}),
    ("int8", {"window": 140, "with_sinks": True})], ids=str)
def test_options_over_pools_in_bytes_equal_the_oracle(dtype, options):
    shape = dataclasses.replace(SMALL_SHAPE, dtype=dtype)
    check(shape, [1, 0, 7, 1, 70], [17, 0, 20, 300, 190], 96, **options)


@pytest.mark.sweep
@pytest.mark.parametrize(("heads", "block_size", "dtype"), [
    ((6, 2, 64), 64, "int8"), ((16, 1, 128), 256, "int8"), ((4, 1, 128), 16, "float8_e4m3fn")], ids=str)
def test_heads_and_blocks_over_pools_in_bytes_equal_the_oracle(heads, block_size, dtype):
    shape = pc.Shape(*heads, block_size, dtype, blocks_per_row=-(-320 // block_size))
    check(shape, [1, 0, 7, 1], [17, 0, 20, 300], 12, tiles=SCALED_ATTENTION["hopper"][heads[2]])


@pytest.mark.sweep
@pytest.mark.parametrize(("dtype", "lengths"), [
    ("int8", (1, 15, 16)), ("float8_e4m3fn", (17, 63, 64)), ("float8_e4m3fn", (65, 127, 1)), ("int8", (129, 255, 257))])
def test_lengths_around_boundaries_over_pools_in_bytes(dtype, lengths):
    check(dataclasses.replace(SMALL_SHAPE, dtype=dtype), [1, 2, 1], lengths, 8)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", SCALED)
def test_queries_in_float16_over_pools_in_bytes_equal_the_oracle(dtype):
    check(dataclasses.replace(SMALL_SHAPE, dtype=dtype), [1, 9], [300, 40], 16, queries=np.float16)


@pytest.mark.sweep
@pytest.mark.parametrize("tiles", [
    AttentionTiles(64, 64, 1, 2), AttentionTiles(128, 128, 2, 3), AttentionTiles(128, 256, 1, 4)], ids=str)
def test_any_tiles_equal_the_oracle(tiles):
    check(SMALL_SHAPE, [1, 9, 1], [16, 270, 300], 12, tiles=tiles)


@pytest.mark.sweep
@pytest.mark.parametrize("lengths", [(1, 15, 16), (17, 63, 64), (65, 127, 128), (129, 255, 256), (257, 2, 320)])
@pytest.mark.parametrize("count", [1, 2])
def test_lengths_around_the_boundaries_of_blocks_tiles_and_splits(lengths, count):
    counts = [min(count, length) for length in lengths]
    check(SMALL_SHAPE, counts, lengths, 8, seed=count)


@pytest.mark.sweep
@pytest.mark.parametrize("counts", [[0, 0, 0], [8, 0, 0], [0, 0, 8], [3, 1, 4]])
def test_rows_may_be_idle_decoding_or_prefilling_in_any_place(counts):
    lengths = [count + 30 * row if count else 0 for row, count in enumerate(counts)]
    check(SMALL_SHAPE, counts, lengths, 8)


@pytest.mark.sweep
@pytest.mark.parametrize("garbage", [np.inf, -np.inf, 3e38])
def test_infinite_and_huge_garbage_is_not_read_either(garbage):
    check(SMALL_SHAPE, [1, 9], [30, 140], 16, build={"garbage": garbage})


@pytest.mark.sweep
def test_rows_share_the_blocks_of_a_common_prefix():
    check(SMALL_SHAPE, [1, 1, 20], [40, 264, 60], 32, build={"shared_blocks": 2})


@pytest.mark.parametrize("dtype", ["bfloat16", *(pytest.param(dtype, marks=pytest.mark.sweep) for dtype in SCALED)])
def test_a_query_has_the_same_bits_split_over_its_keys_whole_and_in_a_chunk(dtype):
    """A decode alone, in company, without room for its splits, and as the last token of a chunk."""
    shape = dataclasses.replace(SMALL_SHAPE, dtype=dtype)
    rng = np.random.default_rng(1)
    kv = pc.contexts(rng, shape, [300])
    other = pc.contexts(rng, shape, [77])
    chunk = pc.build(rng, shape, [9, 0], [300, 0], 12, kv=[*kv, *pc.contexts(rng, shape, [0])])
    query = chunk.q[8].copy()

    def decode(company, **options):
        case = pc.build(rng, shape, [1, 1], [77, 300], 12, kv=[*other, *kv]) if company else pc.build(
            rng, shape, [1, 0], [300, 0], 12, kv=[*kv, *pc.contexts(rng, shape, [0])])
        case.q[int(company)] = query
        out, lse = mosaic.attend(case, **options)
        return out[int(company)], lse[int(company)]

    results = [decode(company=False), decode(company=True)]
    out, lse = mosaic.attend(chunk)
    results.append((out[8], lse[8]))
    results.append(decode(company=False, partial_bytes=0))
    for out, lse in results[1:]:
        np.testing.assert_array_equal(out, results[0][0])
        np.testing.assert_array_equal(lse, results[0][1])
