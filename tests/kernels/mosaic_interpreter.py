"""Attention in Mosaic GPU, run by JAX's GPU interpreter with its race detector."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu
from kernels.paged_cases import Case

from pallas_kernels.mosaic_gpu.tiles import AttentionTiles
from pallas_kernels.paged_attention import paged_attention_metadata
from pallas_kernels.paged_attention.pallas import paged_attention_pallas

INTERPRETER = plgpu.InterpretGPUParams(detect_races=True)
"""Raises at a race, and at a wait or an arrival that is missing; memory that nothing wrote is NaN."""

SMALL = AttentionTiles(keys=64, split=128, consumers=2, stages=2)
"""Several splits in a hundred tokens."""


@partial(jax.jit, static_argnames=("window", "soft_cap", "tiles"))
def _attend(q, k_pool, v_pool, tables, query_start, lengths, sinks, *, window, soft_cap, tiles):
    metadata = paged_attention_metadata(tables, query_start, lengths, q.shape[0], k_pool.shape[2])
    return paged_attention_pallas(
        q, k_pool, v_pool, metadata, scale=q.shape[-1] ** -0.5, window=window, soft_cap=soft_cap, sinks=sinks,
        return_lse=True, tiles=tiles, interpret=INTERPRETER)


def attend(
    case: Case, *, window: int | None = None, soft_cap: float | None = None, sinks: np.ndarray | None = None,
    tiles: AttentionTiles = SMALL,
) -> tuple[np.ndarray, np.ndarray]:
    """Output (exactly as float32) and lse of a case."""
    out, lse = _attend(
        *map(jnp.asarray, (case.q, case.k_pool, case.v_pool, case.tables, case.query_start, case.lengths)),
        None if sinks is None else jnp.asarray(sinks, jnp.float32), window=window, soft_cap=soft_cap, tiles=tiles)
    return np.asarray(out.astype(jnp.float32)), np.asarray(lse)


def forget() -> None:
    """Trace anew, for constants that a test has changed."""
    _attend.clear_cache()
