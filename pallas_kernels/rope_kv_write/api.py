"""The contract of what stands between a layer's query-key-value product and its attention."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels import registry


def rope_kv_write(
    k_pool: Float[Array, "P K S H"],
    v_pool: Float[Array, "P K S H"],
    qkv: Float[Array, "T NKK H"],
    cos: Float[Array, "T half"],
    sin: Float[Array, "T half"],
    slots: Int32[Array, " T"],
    implementation: str | None = None,
) -> tuple[Float[Array, "P K S H"], Float[Array, "P K S H"], Float[Array, "T N H"]]:
    """Rotate queries and keys by their position's angles; return the pools with keys and values, and the queries.

    ``qkv`` holds N query heads, K key heads and K value heads per token, in the pools' dtype. Rotary embedding (Su et
    al. 2021) turns the two halves of a head into ``a * cos - b * sin`` and ``b * cos + a * sin``, in float32, rounded
    once. Slots are those of `kv_write`; pools are written in place where they are donated.
    """
    if k_pool.ndim != 4 or v_pool.shape != k_pool.shape or v_pool.dtype != k_pool.dtype:
        raise ValueError(f"k_pool and v_pool must be [P, K, S, H] of one dtype, got {k_pool.dtype} {k_pool.shape} and "
                         f"{v_pool.dtype} {v_pool.shape}")
    kv_heads, head_dim = k_pool.shape[1], k_pool.shape[3]
    if head_dim % 2:
        raise ValueError(f"the head dim must be even, got {head_dim}")
    if qkv.ndim != 3 or qkv.shape[1] <= 2 * kv_heads or qkv.shape[2] != head_dim or qkv.dtype != k_pool.dtype:
        raise ValueError(f"qkv must be {k_pool.dtype} [T, N + 2 * {kv_heads}, {head_dim}] with N >= 1, got {qkv.dtype} "
                         f"{qkv.shape}")
    tokens = qkv.shape[0]
    if slots.shape != (tokens,) or slots.dtype != jnp.int32:
        raise ValueError(f"slots must be int32 [{tokens}], got {slots.dtype} {slots.shape}")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.shape != (tokens, head_dim // 2) or table.dtype != jnp.float32:
            raise ValueError(f"{name} must be float32 [{tokens}, {head_dim // 2}], got {table.dtype} {table.shape}")
    operands = {"k_pool": k_pool, "v_pool": v_pool, "qkv": qkv, "cos": cos, "sin": sin, "slots": slots}
    return registry.choose("rope_kv_write", implementation, operands=operands).run(**operands)
