"""What is compiled for GPUs in test_triton_compiles.py: Triton kernels at the shapes of models."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import Float8Pool, Int8Pool, aot, kv_write, paged_attention, paged_attention_metadata, rope_kv_write

TOKENS, ROWS, BLOCK, BLOCKS, CONTEXT = 2048, 64, 64, 4096, 32_768


@dataclass(frozen=True)
class Model:
    """Heads of a model's attention, and the kinds of its layers."""

    heads: int
    kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...] = (None,)
    sinks: bool = False
    soft_cap: float | None = None


MODELS = {
    "llama-3-8b": Model(32, 8, 128),
    "qwen3-30b-a3b": Model(32, 4, 128),
    "gemma-3-27b": Model(32, 16, 128, (None, 1024)),
    "gpt-oss-120b": Model(64, 8, 64, (None, 128), sinks=True),
    "gemma-2-9b": Model(16, 8, 256, (None, 4096), soft_cap=50.0),
}
SCALED = {"int8": (Int8Pool, jnp.int8), "float8": (Float8Pool, jnp.float8_e4m3fn)}
"""Pools in bytes."""
OLDEST_WITH_FLOAT8 = (8, 9)


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def pool(model: Model, scaled: str | None, block: int = BLOCK) -> Any:
    shape = BLOCKS, model.kv_heads, block, model.head_dim
    if scaled is None:
        return array(*shape)
    kind, dtype = SCALED[scaled]
    return kind(array(*shape, dtype=dtype), array(*shape[:3], dtype=jnp.float32))


def attend(q, k_pool, v_pool, tables, query_start, lengths, sinks, **options):
    metadata = paged_attention_metadata(tables, query_start, lengths, q.shape[0], k_pool.shape[2])
    return paged_attention(q, k_pool, v_pool, metadata, scale=q.shape[2] ** -0.5, sinks=sinks, return_lse=True,
                           implementation="triton", **options)


def attention(
    name: str, window: int | None, *, scaled: str | None = None, block: int = BLOCK, **options: Any
) -> aot.Case:
    model = MODELS[name]
    indices = functools.partial(array, dtype=jnp.int32)
    kinds = [f"window {window}" if window else "full", f"blocks of {block}", *([scaled] if scaled else []), *options]
    arguments = (
        array(TOKENS, model.heads, model.head_dim), pool(model, scaled, block), pool(model, scaled, block),
        indices(ROWS, CONTEXT // block), indices(ROWS + 1), indices(ROWS),
        array(model.heads, dtype=jnp.float32) if model.sinks else None)
    return aot.Case(f"{name} attention: {', '.join(kinds)}",
                    functools.partial(attend, window=window, soft_cap=model.soft_cap, **options), arguments)


def rope_write(name: str, scaled: str | None) -> aot.Case:
    model = MODELS[name]
    angles = array(TOKENS, model.head_dim // 2, dtype=jnp.float32)
    qkv = array(TOKENS, model.heads + 2 * model.kv_heads, model.head_dim)
    function = jax.jit(functools.partial(rope_kv_write, implementation="triton"), donate_argnums=(0, 1))
    arguments = (pool(model, scaled), pool(model, scaled), qkv, angles, angles, array(TOKENS, dtype=jnp.int32))
    return aot.Case(f"{name} rope and write{f': {scaled}' if scaled else ''}", function, arguments)


def write(name: str, scaled: str | None) -> aot.Case:
    model = MODELS[name]
    kv = array(TOKENS, model.kv_heads, model.head_dim)
    function = jax.jit(functools.partial(kv_write, implementation="triton"), donate_argnums=(0, 1))
    arguments = (pool(model, scaled), pool(model, scaled), kv, kv, array(TOKENS, dtype=jnp.int32))
    return aot.Case(f"{name} write{f': {scaled}' if scaled else ''}", function, arguments)


def cases(gpu: str) -> Iterator[aot.Case]:
    for name, model in MODELS.items():
        for window in model.windows:
            yield attention(name, window)
        yield attention(name, window, deterministic=True)
        yield attention(name, window, scaled="int8")
        for scaled in (None, "int8"):
            yield rope_write(name, scaled)
    yield attention("llama-3-8b", None, block=16)
    yield attention("llama-3-8b", None, block=16, scaled="int8", deterministic=True)
    yield attention("gemma-2-9b", 4096, scaled="int8", deterministic=True)
    for scaled in (None, "int8"):
        yield write("llama-3-8b", scaled)
    if aot.GPUS[gpu].capability >= OLDEST_WITH_FLOAT8:
        yield attention("llama-3-8b", None, scaled="float8")
        yield attention("gemma-2-9b", 4096, scaled="float8", deterministic=True)
        yield rope_write("llama-3-8b", "float8")
        yield write("llama-3-8b", "float8")
