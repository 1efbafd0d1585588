"""Attention in Mosaic GPU at the shapes of models, for the tests that compile it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import aot
from pallas_kernels.paged_attention import paged_attention_metadata
from pallas_kernels.paged_attention.pallas import paged_attention_pallas
from pallas_kernels.scaled_pool import Float8Pool, Int8Pool

SCALED = {"int8": Int8Pool, "float8_e4m3fn": Float8Pool}

MODELS = {
    "Llama-3-8B": {"heads": (32, 8, 128)},
    "Qwen3-30B-A3B": {"heads": (32, 4, 128)},
    "Gemma-3-27B": {"heads": (32, 16, 128)},
    "Gemma-3-27B, window": {"heads": (32, 16, 128), "window": 1024},
    "gpt-oss-120b": {"heads": (64, 8, 64), "sinks": True},
    "gpt-oss-120b, window": {"heads": (64, 8, 64), "sinks": True, "window": 128},
    "largest heads, soft cap": {"heads": (16, 8, 256), "soft_cap": 50.0},
    "blocks of 16": {"heads": (32, 8, 128), "block_size": 16},
    "blocks of 256": {"heads": (32, 8, 128), "block_size": 256},
    "Llama-3-8B, int8": {"heads": (32, 8, 128), "kept": "int8"},
    "Llama-3-8B, float8": {"heads": (32, 8, 128), "kept": "float8_e4m3fn"},
    "gpt-oss-120b, window, int8": {"heads": (64, 8, 64), "sinks": True, "window": 128, "kept": "int8"},
    "gpt-oss-120b, float8": {"heads": (64, 8, 64), "sinks": True, "kept": "float8_e4m3fn"},
    "blocks of 16, int8": {"heads": (32, 8, 128), "block_size": 16, "kept": "int8"},
}
"""heads: N, K, H. kept: dtype of pools in bytes."""


def cases(gpu: str) -> Iterator[aot.Case]:
    """Each of them: decodes and chunks of up to 2048 tokens in 64 rows of up to 32768."""
    for name, options in MODELS.items():
        yield aot.Case(name, *_attention(**options))


def _attention(
    heads: tuple[int, int, int], window: int | None = None, soft_cap: float | None = None, sinks: bool = False,
    block_size: int = 64, kept: str | None = None,
) -> tuple:
    num_heads, num_kv_heads, head_dim = heads
    num_tokens, num_rows = 2048, 64

    def attend(q, k_pool, v_pool, tables, query_start, lengths, *sinks):
        metadata = paged_attention_metadata(tables, query_start, lengths, num_tokens, block_size)
        return paged_attention_pallas(
            q, k_pool, v_pool, metadata, scale=head_dim**-0.5, window=window, soft_cap=soft_cap,
            sinks=sinks[0] if sinks else None, return_lse=True)

    pool: Any = jax.ShapeDtypeStruct((4096, num_kv_heads, block_size, head_dim), jnp.dtype(kept or jnp.bfloat16))
    if kept is not None:
        pool = SCALED[kept](pool, jax.ShapeDtypeStruct(pool.shape[:3], jnp.float32))
    shapes = [
        jax.ShapeDtypeStruct((num_tokens, num_heads, head_dim), jnp.bfloat16), pool, pool,
        jax.ShapeDtypeStruct((num_rows, 32768 // block_size), jnp.int32),
        jax.ShapeDtypeStruct((num_rows + 1,), jnp.int32), jax.ShapeDtypeStruct((num_rows,), jnp.int32)]
    if sinks:
        shapes.append(jax.ShapeDtypeStruct((num_heads,), jnp.float32))
    return attend, tuple(shapes)
