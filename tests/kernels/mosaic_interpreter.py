"""Kernels in Mosaic GPU, run by JAX's GPU interpreter with its race detector, in a process of its own.

The interpreter runs each warpgroup as a program of its own, and they wait for each other: with fewer threads in XLA's
pool than warpgroups, as on a machine of two cores, they would wait for ever. ``NPROC`` sets the pool's size when a
process starts, and more threads than cores would change what other tests compute on the CPU.
"""

from __future__ import annotations

import faulthandler
import functools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu
from kernels.paged_cases import Case

from pallas_kernels.grouped_matmul.pallas import grouped_matmul_pallas
from pallas_kernels.mosaic_gpu.tiles import PARTIAL_BYTES, AttentionTiles, MatmulTiles
from pallas_kernels.paged_attention import mosaic_work, paged_attention_metadata
from pallas_kernels.paged_attention.pallas import paged_attention_pallas

INTERPRETER = plgpu.InterpretGPUParams(detect_races=True)
"""Raises at a race, and at a wait or an arrival that is missing; memory that nothing wrote is NaN."""

SMALL = AttentionTiles(keys=64, split=128, consumers=2, stages=2)
"""Several splits in a hundred tokens."""

LONGEST = 600
"""Seconds after which a case that hangs ends its process, and says where; many times what one takes."""


def attend(
    case: Case, *, window: int | None = None, soft_cap: float | None = None, sinks: np.ndarray | None = None,
    tiles: AttentionTiles = SMALL, partial_bytes: int = PARTIAL_BYTES,
) -> tuple[np.ndarray, np.ndarray]:
    """Output (exactly as float32) and lse of a case. partial_bytes: in place of ``PARTIAL_BYTES``."""
    options = {"window": window, "soft_cap": soft_cap, "tiles": tiles}
    return _process().submit(_attend_here, case, sinks, options, partial_bytes).result()


def multiply(
    x: np.ndarray, weights: np.ndarray, group_sizes: np.ndarray, out_dtype: str, tiles: MatmulTiles
) -> np.ndarray:
    """Products of groups of rows, exactly as float32."""
    return _process().submit(_multiply_here, x, weights, group_sizes, out_dtype, tiles).result()


@functools.cache
def _process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_use_many_threads)


def _use_many_threads() -> None:
    os.environ["NPROC"] = "16"


def _attend_here(
    case: Case, sinks: np.ndarray | None, options: dict, partial_bytes: int
) -> tuple[np.ndarray, np.ndarray]:
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    if partial_bytes != mosaic_work.PARTIAL_BYTES:
        mosaic_work.PARTIAL_BYTES = partial_bytes
        _attend.clear_cache()
    out, lse = _attend(
        *jax.tree.map(
            jnp.asarray, (case.q, case.k_pool, case.v_pool, case.tables, case.query_start, case.lengths)),
        None if sinks is None else jnp.asarray(sinks, jnp.float32), **options)
    result = np.asarray(out.astype(jnp.float32)), np.asarray(lse)
    faulthandler.cancel_dump_traceback_later()
    return result


@functools.partial(jax.jit, static_argnames=("window", "soft_cap", "tiles"))
def _attend(q, k_pool, v_pool, tables, query_start, lengths, sinks, *, window, soft_cap, tiles):
    metadata = paged_attention_metadata(tables, query_start, lengths, q.shape[0], k_pool.shape[2])
    return paged_attention_pallas(
        q, k_pool, v_pool, metadata, scale=q.shape[-1] ** -0.5, window=window, soft_cap=soft_cap, sinks=sinks,
        return_lse=True, tiles=tiles, interpret=INTERPRETER)


def _multiply_here(
    x: np.ndarray, weights: np.ndarray, group_sizes: np.ndarray, out_dtype: str, tiles: MatmulTiles
) -> np.ndarray:
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    out = _multiply(*map(jnp.asarray, (x, weights, group_sizes)), out_dtype=out_dtype, tiles=tiles)
    result = np.asarray(out.astype(jnp.float32))
    faulthandler.cancel_dump_traceback_later()
    return result


@functools.partial(jax.jit, static_argnames=("out_dtype", "tiles"))
def _multiply(x, weights, group_sizes, *, out_dtype, tiles):
    return grouped_matmul_pallas(
        x, weights, group_sizes, None, jnp.dtype(out_dtype), tiles=tiles, interpret=INTERPRETER)
