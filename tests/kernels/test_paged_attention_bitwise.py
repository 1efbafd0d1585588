"""A request's outputs are the same bits in whatever company, chunks and places they are computed.

One context's queries are attended once in a single large chunk, then again and again in other ways: random chunks and
decode steps, other buckets, other rows and blocks, neighbours of all kinds, and garbage of all kinds in the slots that
must not be read. Equality is exact, in the output and in the lse.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernels import paged_cases as pc

LENGTH = 330  # two key groups, six prefill tiles
NUM_ROWS = 12
BUCKETS = (8, 64, 512)


def outputs(implementation, rng, shape, chunks, q, kv, *, neighbours, options):
    """Outputs and lse of all queries of one context, computed in the given chunks."""
    done, pieces = 0, []
    for chunk in chunks:
        row = int(rng.integers(NUM_ROWS))
        counts, lengths = np.zeros(NUM_ROWS, int), np.zeros(NUM_ROWS, int)
        if neighbours:
            for other in rng.permutation(NUM_ROWS)[: rng.integers(NUM_ROWS)]:
                counts[other] = rng.choice([1, 1, 1, 2, 5, 40])
                lengths[other] = counts[other] + rng.integers(0, 340)
        counts[row], lengths[row] = chunk, done + chunk
        fitting = [bucket for bucket in BUCKETS if bucket >= counts.sum()]
        all_kv = pc.contexts(rng, shape, lengths)
        all_kv[row] = tuple(x[: done + chunk] for x in kv)
        case = pc.build(
            rng,
            shape,
            counts,
            lengths,
            int(rng.choice(fitting)),
            kv=all_kv,
            window=options.get("window"),
            garbage=float(rng.choice([np.nan, np.inf, 0, 7])),
        )
        mine = slice(case.query_start[row], case.query_start[row] + chunk)
        case.q[mine] = q[done : done + chunk]
        pieces.append([x[mine] for x in pc.attend(case, implementation, **options)])
        done += chunk
    return [np.concatenate(parts) for parts in zip(*pieces, strict=True)]


def random_chunks(rng, length):
    sizes = rng.choice([1, 1, 2, 3, 8, 17, 64, 100], size=length)
    ends = list(itertools.takewhile(lambda end: end < length, np.cumsum(sizes)))
    return np.diff([0, *ends, length])


def check(implementation, shape, *, trials, **options):
    rng = np.random.default_rng(0)
    if options.pop("with_sinks", False):
        options["sinks"] = rng.standard_normal(shape.num_heads) * 2
    q = (rng.standard_normal((LENGTH, shape.num_heads, shape.head_dim)) * 2).astype(shape.numpy_dtype)
    kv = pc.contexts(rng, shape, [LENGTH])[0]
    expected, expected_lse = outputs(implementation, rng, shape, [LENGTH], q, kv, neighbours=False, options=options)
    assert np.isfinite(expected).all()
    ways = [([64] * 5 + [10], False), ([320] + [1] * 10, True)]
    ways += [(random_chunks(rng, LENGTH), True) for _ in range(trials)]
    for chunks, neighbours in ways:
        out, lse = outputs(implementation, rng, shape, chunks, q, kv, neighbours=neighbours, options=options)
        np.testing.assert_array_equal(out, expected, err_msg=f"chunks {list(chunks)}")
        np.testing.assert_array_equal(lse, expected_lse, err_msg=f"lse, chunks {list(chunks)}")


@pytest.mark.parametrize(("implementation", "dtype"), [
    *pc.kinds("bfloat16", "float32", "int8"), pytest.param("xla", "float8_e4m3fn", marks=pytest.mark.sweep)])
def test_outputs_do_not_depend_on_chunks_bucket_row_blocks_or_neighbours(implementation, dtype):
    check(implementation, pc.Shape(9, 3, 64, 32, dtype, blocks_per_row=24), trials=3)


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_outputs_with_linear_biases_do_not_depend_on_company(dtype):
    slopes = 2.0 ** -np.arange(1, 7) * 0.7
    check("xla", pc.Shape(6, 2, 96, 32, dtype, blocks_per_row=24), trials=1, alibi_slopes=slopes)


@pytest.mark.sweep
def test_outputs_over_latents_of_deepseeks_size_do_not_depend_on_company():
    check(None, pc.Shape(16, 1, 576, 16, "bfloat16", blocks_per_row=24), trials=1)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.sweep)])
def test_outputs_in_chunks_of_positions_do_not_depend_on_company(dtype):
    check("xla", pc.Shape(6, 2, 96, 32, dtype, blocks_per_row=24), trials=1, chunk=100)


@pytest.mark.sweep
@pytest.mark.parametrize(("implementation", "dtype"), pc.kinds("bfloat16", "float32", "int8"))
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((9, 3, 64, 16), {}),
        ((4, 4, 64, 8), {"soft_cap": 10.0}),
        ((8, 1, 80, 16), {"window": 100, "soft_cap": 3.0, "with_sinks": True}),
        ((6, 2, 96, 32), {"with_sinks": True}),
        ((4, 2, 128, 64), {"window": 300}),
        ((2, 1, 256, 16), {"window": 3}),
    ],
    ids=str,
)
def test_outputs_do_not_depend_on_company_for_any_shape_and_option(implementation, shape, options, dtype):
    check(implementation, pc.Shape(*shape, dtype, blocks_per_row=-(-700 // shape[3])), trials=4, **options)
