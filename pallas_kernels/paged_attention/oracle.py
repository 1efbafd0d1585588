"""Paged attention the slow and obvious way: row by row, all its keys at once, a plain softmax. For tests only."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.scaled_pool import Pool, ScaledPool


def paged_attention_oracle(
    q: Float[Array, "T N H"],
    k_pool: Pool,
    v_pool: Pool,
    metadata: PagedAttentionMetadata,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    alibi_slopes: Float[Array, " N"] | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
) -> Array | tuple[Array, Array]:
    """Compute in float64 on the host; under ``jit`` through a callback."""
    out = (
        jax.ShapeDtypeStruct(q.shape, jnp.float32),
        jax.ShapeDtypeStruct(q.shape[:2], jnp.float32),
    )

    def on_host(*arrays: Any) -> tuple[np.ndarray, np.ndarray]:
        q, k_pool, v_pool, tables, query_start, lengths, sinks, slopes, offset = jax.tree.map(np.asarray, arrays)
        return attend_rows(q, k_pool, v_pool, tables, query_start, lengths, scale, window, soft_cap, sinks, slopes,
                           chunk, metadata.stride, offset)

    operands = (q, k_pool, v_pool, metadata.tables, metadata.query_start, metadata.lengths)
    values, lse = jax.pure_callback(on_host, out, *operands, sinks, alibi_slopes, metadata.offset)
    values = values.astype(q.dtype)
    return (values, lse) if return_lse else values


def attend_rows(
    q: np.ndarray,
    k_pool: Any,
    v_pool: Any,
    tables: np.ndarray,
    query_start: np.ndarray,
    lengths: np.ndarray,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: np.ndarray | None = None,
    alibi_slopes: np.ndarray | None = None,
    chunk: int | None = None,
    stride: int | None = None,
    offset: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """The same on numpy arrays: one query, one head, its visible keys, a softmax."""
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = k_pool.shape
    repeat = num_heads // num_kv_heads
    out = np.zeros((num_tokens, num_heads, head_dim), np.float32)
    lse = np.full((num_tokens, num_heads), -np.inf, np.float32)
    for row, length in enumerate(lengths):
        tokens = range(query_start[row], query_start[row + 1])
        for token in tokens:
            position = length - len(tokens) + (token - query_start[row])
            first = 0 if window is None else max(0, position - window + 1)
            first = first if chunk is None else position // chunk * chunk
            visible = np.arange(first, position + 1)
            column, slot = np.divmod(visible, stride or block_size)
            slot = slot if offset is None else slot - offset
            here = (slot >= 0) & (slot < block_size)
            visible, slot, block = visible[here], slot[here], tables[row, column[here]]
            if not len(visible) and sinks is None:
                continue
            for head in range(num_heads):
                keys, values = (_read(pool, (block, head // repeat, slot)) for pool in (k_pool, v_pool))
                logits = keys @ q[token, head].astype(np.float64) * scale
                if soft_cap is not None:
                    logits = soft_cap * np.tanh(logits / soft_cap)
                if alibi_slopes is not None:
                    logits = logits - np.float64(alibi_slopes[head]) * (position - visible)
                extra = [] if sinks is None else [np.float64(sinks[head])]
                largest = max([*logits, *extra])
                weights = np.exp(logits - largest)
                total = weights.sum() + sum(np.exp(logit - largest) for logit in extra)
                out[token, head] = weights @ values / total
                lse[token, head] = largest + np.log(total)
    return out, lse


def _read(pool: Any, at: tuple[Any, ...]) -> np.ndarray:
    if isinstance(pool, ScaledPool):
        return np.asarray(pool.values[at], np.float64) * np.asarray(pool.scales[at], np.float64)[:, None]
    return np.asarray(pool[at], np.float64)
