"""What is particular to native attention: instruction sets, spans of keys, threads, and operands it must refuse."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernels import paged_cases as pc
from kernels.native import FOR_INT8_POOLS, INSTRUCTION_SETS, needs_int8_pools, needs_native, using

from pallas_kernels import cpu, registry
from pallas_kernels.paged_attention import paged_attention, paged_attention_metadata

pytestmark = needs_native
UNIT = 2.0**-8
LONG = 1400  # three spans of 512 keys


def kinds():
    """Each instruction set, for the fixture of that name, with the dtypes of pools that its kernels take."""
    taken = [pytest.param(*one.values, dtype, marks=one.marks) for one in INSTRUCTION_SETS
             for dtype in ("bfloat16", "int8") if dtype == "bfloat16" or one.values[0] in FOR_INT8_POOLS]
    return pytest.mark.parametrize(("instruction_set", "dtype"), taken, indirect=["instruction_set"])



@pytest.mark.skipif(cpu.instruction_set() != FOR_INT8_POOLS[-1], reason=f"needs {' and '.join(FOR_INT8_POOLS)}")
@pytest.mark.parametrize("heads", [(6, 2), (9, 1), (20, 1)], ids=str)
@pytest.mark.parametrize("head_dim", [16, 64, 80, 256])
def test_instruction_sets_give_the_same_bits_for_bytes(heads, head_dim):
    """Sums of integers are exact. Up to 8, up to 16 and more queries of a kv head are computed in ways of their own."""
    shape = pc.Shape(*heads, head_dim, 16, "int8", blocks_per_row=40)
    case = pc.build(np.random.default_rng(0), shape, [1, 30, 0, 2], [600, 300, 0, 40], 48)
    found = []
    for name in FOR_INT8_POOLS:
        with using(name):
            found.append(pc.attend(case, "cpu", soft_cap=5.0))
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@needs_int8_pools
@pytest.mark.parametrize("wrong", ["k", "v", "q"])
def test_what_is_no_number_makes_none_of_what_reads_it(wrong):
    rng = np.random.default_rng(0)
    case = pc.build(rng, pc.Shape(dtype="int8"), [1, 9], [30, 40], 16)
    if wrong == "q":
        case.q[0, 0, 3] = np.nan
    else:
        getattr(case, f"{wrong}_pool").scales[case.tables[0, 0], 0, 4] = np.nan
    out, _ = pc.attend(case, "cpu")
    assert np.isnan(out[0, 0]).all()
    assert np.isfinite(out[0, 3:]).all()  # the other kv head's
    assert np.isfinite(out[1:10]).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"window": 600}, {"soft_cap": 3.0}, {"sinks": np.linspace(-3, 3, 6)}, {"window": 3, "soft_cap": 3.0}],
    ids=str,
)
@kinds()
def test_equals_the_oracle_over_several_spans(instruction_set, dtype, options):
    counts, lengths = [1, 40, 0, 1, 2], [LONG, LONG, 0, 511, 1026]
    shape = pc.Shape(block_size=32, dtype=dtype)
    case = pc.build(np.random.default_rng(0), shape, counts, lengths, 48, window=options.get("window"))
    out, lse = pc.attend(case, "cpu", **options)
    expected, expected_lse = pc.expected(case, **options)
    np.testing.assert_allclose(out, expected, rtol=0, atol=UNIT * case.largest)
    np.testing.assert_allclose(lse[: case.num_real], expected_lse[: case.num_real], rtol=0,
                               atol=3e-4 if dtype == "int8" else 2e-5)  # see test_paged_attention


def one_row(shape, q, kv, done, chunk, neighbours=()):
    """Output and lse of the queries ``done : done + chunk`` of one context; neighbours: (count, length) of others."""
    rng = np.random.default_rng(done)
    counts = [chunk, *(count for count, _ in neighbours)]
    lengths = [done + chunk, *(length for _, length in neighbours)]
    mine = tuple(x[: done + chunk] for x in kv)
    case = pc.build(rng, shape, counts, lengths, 512, kv=[mine, *pc.contexts(rng, shape, lengths[1:])])
    case.q[:chunk] = q[done : done + chunk]
    return [x[:chunk] for x in pc.attend(case, "cpu")]


@kinds()
def test_bits_do_not_depend_on_block_size_chunk_or_company_over_several_spans(instruction_set, dtype):
    rng = np.random.default_rng(1)
    shape = pc.Shape(block_size=32, dtype=dtype)
    q = (rng.standard_normal((LONG, shape.num_heads, shape.head_dim)) * 2).astype(shape.numpy_dtype)
    kv = pc.contexts(rng, shape, [LONG])[0]
    first = LONG - 300
    expected, expected_lse = one_row(shape, q, kv, first, 300)
    for block_size in (8, 16, 24, 64, 128, 512):
        other = pc.Shape(block_size=block_size, dtype=dtype, blocks_per_row=-(-LONG // block_size))
        out, lse = one_row(other, q, kv, first, 300)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(lse, expected_lse)
    for done, chunk in [(first, 1), (first + 7, 1), (1152, 1), (1200, 3), (LONG - 1, 1), (LONG - 17, 17)]:
        out, lse = one_row(shape, q, kv, done, chunk, neighbours=[(1, 5), (60, 700), (1, 1300)])
        np.testing.assert_array_equal(out, expected[done - first : done - first + chunk])
        np.testing.assert_array_equal(lse, expected_lse[done - first : done - first + chunk])


@kinds()
def test_rows_that_share_blocks_get_the_bits_that_each_gets_alone(instruction_set, dtype):
    """Six rows share 640 keys, three of them 700 more, one only its first 130; a prefill chunk shares some as well."""
    shape = pc.Shape(block_size=16, dtype=dtype, blocks_per_row=90)
    counts, lengths = [1, 1, 4, 1, 1, 1, 20], [1400, 1380, 1399, 700, 640, 1000, 900]
    rng = np.random.default_rng(2)
    kv = pc.contexts(rng, shape, lengths)
    shared = [0, 1340, 1340, 640, 640, 130, 512]
    for row, keys in enumerate(shared):
        for mine, first in zip(kv[row], kv[0], strict=True):
            mine[: keys // 16 * 16] = first[: keys // 16 * 16]
    case = pc.build(rng, shape, counts, lengths, 64, kv=kv)
    alone, alone_lse = pc.attend(case, "cpu")
    for row, keys in enumerate(shared):
        case.tables[row, : keys // 16] = case.tables[0, : keys // 16]
    together, together_lse = pc.attend(case, "cpu")
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(together_lse, alone_lse)
    expected, _ = pc.expected(case)
    np.testing.assert_allclose(together, expected, rtol=0, atol=UNIT * case.largest)


def small_step(**change):
    step = {
        "tables": np.arange(1, 9, dtype=np.int32).reshape(2, 4),
        "query_start": np.array([0, 1, 4], np.int32),
        "lengths": np.array([60, 20], np.int32),
    } | {name: np.asarray(value, np.int32) for name, value in change.items()}
    q = jnp.ones((8, 4, 64), jnp.bfloat16)
    pool = jnp.ones((9, 2, 16, 64), jnp.bfloat16)

    def run(q, pool, tables, query_start, lengths):
        metadata = paged_attention_metadata(tables, query_start, lengths, 8, 16)
        return paged_attention(q, pool, pool, metadata, scale=0.125, implementation="cpu")

    return jax.jit(run)(q, pool, **step)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": [[1, 2, 3, 9], [5, 6, 7, 8]]}, "row 0: names block 9 of a pool of 9"),
        ({"tables": [[1, 2, 3, 4], [5, -1, 7, 8]]}, "row 1: names block -1"),
        ({"lengths": [65, 20]}, "row 0: length 65 exceeds its table of 4 blocks"),
        ({"lengths": [2**31 - 1, 20]}, "row 0: length 2147483647 exceeds"),
        ({"lengths": [60, 2]}, "row 1: has 3 queries but length 2"),
        ({"lengths": [-5, 20]}, "row 0: has 1 queries but length -5"),
        ({"query_start": [0, 1, 9]}, "query_start must lie within the 8 tokens of q, got 0 to 9"),
        ({"query_start": [-1, 1, 4]}, "query_start must lie within"),
        ({"query_start": [0, 5, 4]}, "row 1: query_start falls"),
    ],
)
def test_operands_out_of_range_fail_with_a_reason(change, message):
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        small_step(**change).block_until_ready()


def test_what_is_not_read_may_be_out_of_range():
    out = small_step(tables=[[1, 2, 3, 4], [5, 6, -7, 2**31 - 1]], query_start=[0, 0, 3], lengths=[-9, 20])
    np.testing.assert_array_equal(out[:3], np.ones((3, 4, 64)))
    np.testing.assert_array_equal(out[3:], np.zeros((5, 4, 64)))


@pytest.mark.parametrize("seed", range(5))
def test_random_operands_fail_or_give_finite_numbers(seed):
    rng = np.random.default_rng(seed)
    failures = []
    for _ in range(60):
        wild = rng.random() < 0.5
        try:
            out = small_step(
                tables=rng.integers(-1 if wild else 0, 10 if wild else 9, (2, 4)),
                query_start=rng.integers(-2, 11, 3) if wild else np.sort(rng.integers(0, 9, 3)),
                lengths=rng.integers(-3, 70, 2) if wild else rng.integers(8, 65, 2),
            )
        except jax.errors.JaxRuntimeError as error:
            failures.append(str(error))
        else:
            assert np.isfinite(np.asarray(out, np.float32)).all()
    assert 5 < len(failures) < 40
    assert all("paged_attention: " in failure for failure in failures)


def test_a_program_goes_on_after_a_failure():
    with pytest.raises(jax.errors.JaxRuntimeError):
        small_step(lengths=[65, 20]).block_until_ready()
    assert np.isfinite(np.asarray(small_step(), np.float32)).all()


@pytest.mark.parametrize(
    ("head_dim", "dtype", "chosen"),
    [(64, "bfloat16", "cpu"), (256, "bfloat16", "cpu"), (64, "float32", "xla"), (8, "bfloat16", "xla"),
     (272, "bfloat16", "xla")],
)  # fmt: skip
def test_the_registry_leaves_what_is_not_native_to_xla(head_dim, dtype, chosen):
    pool = jax.ShapeDtypeStruct((2, 2, 16, head_dim), dtype)
    operands = {"q": jax.ShapeDtypeStruct((8, 4, head_dim), dtype), "k_pool": pool, "v_pool": pool}
    assert registry.choose("paged_attention", platform="cpu", operands=operands).implementation.name == chosen
