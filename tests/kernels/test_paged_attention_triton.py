"""Paged attention in Triton, in Triton's interpreter, against the oracle in float64.

What must not be read is NaN, infinite or huge (`paged_cases.build`). Tolerances are those of test_paged_attention.py:
weights and outputs rounded to nearest in the dtype, half a unit in the last place twice; everything else in float32.
The interpreter's tiles are small (16 queries, 16 or 32 keys), so that a few hundred keys are many tiles; splits of
decodes are 256 keys, of deterministic ones 512.
"""

from __future__ import annotations

import numpy as np
import pytest
from kernels import paged_cases as pc
from kernels.triton_process import needs_triton

pytestmark = needs_triton

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "int8": 2.0**-8, "float8_e4m3fn": 2.0**-8}
MIXED = ([1, 0, 7, 1, 33, 1, 1], [17, 0, 20, 300, 60, 1, 16], 64)
SMALL = {"blocks_per_row": 20}


def attend(case: pc.Case, **options) -> tuple[np.ndarray, np.ndarray]:
    """In the interpreter's process."""
    return pc.attend(case, "triton", **options)


def check(interpreter, shape, counts, lengths, num_tokens, *, seed=0, build=None, deterministic=False, **options):
    rng = np.random.default_rng(seed)
    if options.pop("with_sinks", False):
        options["sinks"] = (rng.standard_normal(shape.num_heads) * 2).astype(np.float32)
    case = pc.build(rng, shape, counts, lengths, num_tokens, window=options.get("window"), **(build or {}))
    out, lse = interpreter.call(f"{__name__}:attend", case, deterministic=deterministic, **options)
    expected, expected_lse = pc.expected(case, **options)
    np.testing.assert_allclose(out, expected, rtol=0, atol=UNIT[shape.dtype] * case.largest)
    real = case.num_real
    np.testing.assert_allclose(lse[:real], expected_lse[:real], rtol=0, atol=2e-5)
    assert (out[real:] == 0).all()
    assert (lse[real:] == -np.inf).all()


OPTIONS = {
    "plain": {},
    "window smaller than a block": {"window": 5},
    "window of one": {"window": 1},
    "window of several tiles": {"window": 100},
    "soft cap": {"soft_cap": 2.0},
    "sinks": {"with_sinks": True},
    "all": {"window": 40, "soft_cap": 5.0, "with_sinks": True},
}
NOT_ALWAYS = pytest.mark.sweep


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("option", [
    name if name in ("plain", "all") else pytest.param(name, marks=NOT_ALWAYS) for name in OPTIONS])
def test_mixed_step_equals_the_oracle(interpreter, option, deterministic):
    check(interpreter, pc.Shape(**SMALL), *MIXED, deterministic=deterministic, **OPTIONS[option])


@pytest.mark.parametrize(("dtype", "option"), [
    ("int8", "all"), ("float8_e4m3fn", "all"), *(
        pytest.param(dtype, option, marks=NOT_ALWAYS) for dtype in ("float16", "int8", "float8_e4m3fn")
        for option in OPTIONS if dtype == "float16" or option != "all")])
def test_mixed_step_equals_the_oracle_in_other_dtypes(interpreter, dtype, option):
    check(interpreter, pc.Shape(dtype=dtype, **SMALL), *MIXED, **OPTIONS[option])


@pytest.mark.parametrize(("heads", "block_size"), [
    ((9, 3, 80), 32), *(pytest.param(heads, size, marks=NOT_ALWAYS) for heads, size in [
        ((4, 4, 64), 16), ((8, 1, 96), 16), ((5, 1, 128), 64), ((2, 2, 192), 128), ((16, 1, 256), 256),
        ((20, 1, 64), 32), ((32, 2, 64), 16), ((64, 1, 64), 64)])], ids=str)
def test_heads_and_blocks_of_any_shape(interpreter, heads, block_size):
    shape = pc.Shape(*heads, block_size, blocks_per_row=-(-320 // block_size))
    check(interpreter, shape, *MIXED)
    check(interpreter, shape, *MIXED, window=33, soft_cap=4.0, with_sinks=True)


@pytest.mark.parametrize(("length", "count"), [
    (length, count) if length in (1, 16, 257) else pytest.param(length, count, marks=NOT_ALWAYS)
    for length in (1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257) for count in (1, 2) if count <= length])
def test_lengths_around_the_boundaries_of_blocks_tiles_and_splits(interpreter, length, count):
    check(interpreter, pc.Shape(**SMALL), [0, count, 0], [0, length, 0], 8, seed=length)


@pytest.mark.parametrize("counts", [
    [0, 0, 0], [8, 0, 0], [0, 5, 1], *(pytest.param(counts, marks=NOT_ALWAYS) for counts in (
        [1, 1, 1], [0, 0, 8], [3, 1, 4]))])
def test_rows_may_be_idle_decoding_or_prefilling_in_any_slot(interpreter, counts):
    lengths = [count + 30 * row if count else 0 for row, count in enumerate(counts)]
    check(interpreter, pc.Shape(**SMALL), counts, lengths, 8)


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 100])
def test_any_number_of_tokens(interpreter, num_tokens):
    counts = [1, num_tokens - 1, 0]
    check(interpreter, pc.Shape(**SMALL), counts, [5, 40 + num_tokens if num_tokens > 1 else 0, 0], num_tokens)


def test_rows_share_the_blocks_of_a_common_prefix(interpreter):
    check(interpreter, pc.Shape(**SMALL), [1, 1, 20], [40, 64, 60], 32, build={"shared_blocks": 2})


@pytest.mark.parametrize(("garbage", "dtype"), [
    (np.inf, "bfloat16"), *(pytest.param(garbage, dtype, marks=NOT_ALWAYS) for garbage, dtype in (
        (-np.inf, "bfloat16"), (3e38, "bfloat16"), (np.inf, "int8"), (-np.inf, "int8"), (np.inf, "float8_e4m3fn")))])
def test_infinite_and_huge_garbage_is_not_read_either(interpreter, garbage, dtype):
    check(interpreter, pc.Shape(dtype=dtype, **SMALL), [1, 9], [30, 40], 16, build={"garbage": garbage})
    check(interpreter, pc.Shape(dtype=dtype, **SMALL), [1, 9], [30, 40], 16, build={"garbage": garbage}, window=7)


def test_scales_of_any_size_are_applied_in_float32(interpreter):
    """Weights times scales of 1e-6 would vanish in float16; scores of scales of 1e4 would overflow there."""
    case = pc.build(np.random.default_rng(5), pc.Shape(dtype="int8", **SMALL), [1, 9], [300, 40], 16)
    case.q = case.q.astype(np.float16)
    case.v_pool.scales[:] *= 1e-6
    case.k_pool.scales[:] *= 1e4
    out, lse = interpreter.call(f"{__name__}:attend", case, soft_cap=5.0)
    expected, expected_lse = pc.expected(case, soft_cap=5.0)
    smallest = 2.0**-25  # half a step between numbers near zero
    np.testing.assert_allclose(out[:10], expected[:10], rtol=0, atol=2.0**-8 * case.largest * 1e-6 + smallest)
    np.testing.assert_allclose(lse[:10], expected_lse[:10], rtol=0, atol=2e-5)


@pytest.mark.parametrize("option", [
    name if name == "all" else pytest.param(name, marks=NOT_ALWAYS) for name in OPTIONS])
def test_deterministic_bits_are_those_of_a_query_alone(interpreter, option):
    """As the last of a chunk, as a decode, with other rows, padding and physical blocks: the same bits."""
    options = dict(OPTIONS[option])
    rng = np.random.default_rng(7)
    shape = pc.Shape(blocks_per_row=40)
    if options.pop("with_sinks", False):
        options["sinks"] = (rng.standard_normal(shape.num_heads) * 2).astype(np.float32)
    length, chunk = 600, 21  # more than a split
    contexts = pc.contexts(rng, shape, [length])
    last = rng.standard_normal((chunk, shape.num_heads, shape.head_dim)).astype(shape.numpy_dtype)

    def run(counts, lengths, num_tokens, row, seed):
        others = np.random.default_rng(seed)
        kv = pc.contexts(others, shape, lengths)
        kv[row] = contexts[0]
        case = pc.build(others, shape, counts, lengths, num_tokens, kv=kv, window=options.get("window"))
        first = case.query_start[row]
        case.q[first : first + counts[row]] = last[chunk - counts[row] :]
        out, lse = interpreter.call(f"{__name__}:attend", case, deterministic=True, **options)
        return out[first : first + counts[row]], lse[first : first + counts[row]]

    whole = run([chunk], [length], 32, 0, 1)
    for counts, lengths, num_tokens, row in (
            ([1], [length], 1, 0), ([5, 1, 1], [9, 30, length], 16, 2), ([1, 9, 0, 3], [40, length, 0, 3], 16, 1)):
        part = run(counts, lengths, num_tokens, row, 2)
        for here, there in zip(part, whole, strict=True):
            np.testing.assert_array_equal(here, there[-counts[row] :])


def test_what_it_does_not_take_is_said(interpreter):
    for shape, message in ((pc.Shape(dtype="float32", **SMALL), "queries are bfloat16 or float16, not float32"),
                           (pc.Shape(block_size=24, **SMALL), "blocks have 16, 32, 64, 128 or 256 slots, not 24"),
                           (pc.Shape(head_dim=72, **SMALL), "head dims are multiples of 16 up to 256, not 72"),
                           (pc.Shape(66, 1, **SMALL), "up to 64 query heads share a kv head, not 66")):
        case = pc.build(np.random.default_rng(0), shape, [1], [3], 1)
        with pytest.raises(RuntimeError, match=f"cannot compute this paged_attention: {message}"):
            interpreter.call(f"{__name__}:attend", case)
