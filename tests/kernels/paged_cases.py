"""Steps for the attention tests: rows over a pool in which everything that must not be read is NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from kernels.native import needs_int8_pools, needs_native

from pallas_kernels.paged_attention import paged_attention, paged_attention_metadata
from pallas_kernels.paged_attention.oracle import attend_rows
from pallas_kernels.scaled_pool import Float8Pool, Int8Pool, quantize_heads


def kinds(*dtypes: str) -> list:
    """Implementation and dtype, for parametrization: all that exist of these dtypes."""
    marks = {"bfloat16": needs_native, "int8": needs_int8_pools}
    native = [pytest.param("cpu", dtype, marks=marks[dtype]) for dtype in dtypes if dtype in marks]
    return [*(("xla", dtype) for dtype in dtypes), *native]


SCALED = {"int8": Int8Pool, "float8_e4m3fn": Float8Pool}
"""Pools with scales, by the dtype of their numbers."""


@dataclass(frozen=True)
class Shape:
    """What a model and an engine fix: heads, head dim, block size, dtype, rows, blocks per row.

    dtype: also "int8" and "float8_e4m3fn", of the pools; queries are bfloat16 then.
    """

    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 64
    block_size: int = 16
    dtype: str = "bfloat16"
    blocks_per_row: int = 48

    @property
    def numpy_dtype(self) -> np.dtype:
        return np.dtype(self.dtype if self.dtype not in ("bfloat16", *SCALED) else ml_dtypes.bfloat16)


@dataclass
class Case:
    """One step, as numpy arrays."""

    q: np.ndarray
    k_pool: np.ndarray | Int8Pool | Float8Pool
    v_pool: np.ndarray | Int8Pool | Float8Pool
    tables: np.ndarray
    query_start: np.ndarray
    lengths: np.ndarray
    largest: float  # of the values that may be read, by magnitude

    @property
    def num_real(self) -> int:
        return int(self.query_start[-1])


def contexts(rng: np.random.Generator, shape: Shape, lengths: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Keys and values [length, K, H] of each row."""
    return [
        tuple(
            rng.standard_normal((length, shape.num_kv_heads, shape.head_dim)).astype(shape.numpy_dtype)
            for _ in range(2)
        )
        for length in lengths
    ]


def build(
    rng: np.random.Generator,
    shape: Shape,
    counts: Sequence[int],
    lengths: Sequence[int],
    num_tokens: int,
    *,
    kv: list[tuple[np.ndarray, np.ndarray]] | None = None,
    window: int | None = None,
    shared_blocks: int = 0,
    garbage: float = np.nan,
) -> Case:
    """Lay rows out over shuffled blocks.

    ``garbage`` fills the null block, free blocks, the rest of each last block, and with a window the slots that have
    left it; of pools in bytes their scales, over bytes of -128 or
    NaN. Table entries past a row's length point anywhere, -1 and
    beyond the pool included. The first ``shared_blocks`` blocks of all rows are those of row 0.
    """
    size = shape.block_size
    num_rows = len(lengths)
    if kv is None:
        kv = contexts(rng, shape, lengths)
    if shared_blocks:
        for k, v in kv[1:]:
            k[: shared_blocks * size], v[: shared_blocks * size] = (x[: shared_blocks * size] for x in kv[0])
    num_blocks = 1 + num_rows * shape.blocks_per_row  # the same for all cases of a shape: one compilation
    free = list(1 + rng.permutation(num_blocks - 1))
    tables = rng.integers(-1, num_blocks + 2, (num_rows, shape.blocks_per_row)).astype(np.int32)
    pools = np.full((2, num_blocks, shape.num_kv_heads, size, shape.head_dim), garbage, shape.numpy_dtype)
    for row, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        needed = -(-length // size)
        tables[row, :needed] = [free.pop() for _ in range(needed)]
        if row:
            tables[row, :shared_blocks] = tables[0, :shared_blocks]
        oldest = 0 if window is None else max(0, length - count - window + 1)
        position = np.arange(oldest, length)
        for pool, values in zip(pools, kv[row], strict=True):
            pool[tables[row, position // size], :, position % size] = values[oldest:]
        if window is not None:
            tables[row, : oldest // size] = 0  # given back
    query_start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    q = rng.standard_normal((num_tokens, shape.num_heads, shape.head_dim)) * 2
    q[query_start[-1] :] = garbage
    largest = max((float(np.abs(v).max()) for _, v in kv if v.size), default=0.0)
    if shape.dtype in SCALED:
        pools = [quantized(pool, garbage, shape.dtype) for pool in pools]
    return Case(q.astype(shape.numpy_dtype), *pools, tables, query_start, np.asarray(lengths, np.int32), largest)


def quantized(pool: np.ndarray, garbage: float, dtype: str) -> Int8Pool | Float8Pool:
    """A pool in bytes; slots that hold garbage, in any of their numbers, have it as their scale."""
    wide = np.asarray(pool, np.float32)
    unused = ((wide == garbage) | (np.isnan(wide) & np.isnan(garbage))).all(-1)
    values, scales = map(np.array, quantize_heads(jnp.asarray(pool), jnp.dtype(dtype)))
    values[unused], scales[unused] = -128 if dtype == "int8" else np.nan, garbage
    return SCALED[dtype](values, scales)


@partial(jax.jit, static_argnames=("scale", "window", "chunk", "soft_cap", "deterministic", "implementation"))
def _attend(q, k_pool, v_pool, tables, query_start, lengths, sinks, slopes, *, scale, window, chunk, soft_cap,
            deterministic, implementation):
    metadata = paged_attention_metadata(tables, query_start, lengths, q.shape[0], k_pool.shape[2])
    return paged_attention(
        q,
        k_pool,
        v_pool,
        metadata,
        scale=scale,
        window=window,
        chunk=chunk,
        soft_cap=soft_cap,
        sinks=sinks,
        alibi_slopes=slopes,
        return_lse=True,
        deterministic=deterministic,
        implementation=implementation,
    )


def attend(
    case: Case,
    implementation: str | None,
    *,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: np.ndarray | None = None,
    alibi_slopes: np.ndarray | None = None,
    deterministic: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Output (exactly as float32) and lse of a case."""
    out, lse = _attend(
        *jax.tree.map(
            jnp.asarray, (case.q, case.k_pool, case.v_pool, case.tables, case.query_start, case.lengths)),
        None if sinks is None else jnp.asarray(sinks, jnp.float32),
        None if alibi_slopes is None else jnp.asarray(alibi_slopes, jnp.float32),
        scale=case.q.shape[-1] ** -0.5,
        window=window,
        chunk=chunk,
        soft_cap=soft_cap,
        deterministic=deterministic,
        implementation=implementation,
    )
    return np.asarray(out.astype(jnp.float32)), np.asarray(lse)


def expected(case: Case, **options) -> tuple[np.ndarray, np.ndarray]:
    """The oracle's output, not rounded to the case's dtype, and lse."""
    return attend_rows(
        case.q,
        case.k_pool,
        case.v_pool,
        case.tables,
        case.query_start,
        case.lengths,
        case.q.shape[-1] ** -0.5,
        **options,
    )
