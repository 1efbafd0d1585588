"""The contract of what stands between a layer's query-key-value product and its attention."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels import registry
from pallas_kernels.scaled_pool import Pool, ScaledPool, find_pool_fault

_FLOATS = (jnp.float32, jnp.bfloat16, jnp.float16)


def rope_kv_write[PoolT: Pool](
    k_pool: PoolT,
    v_pool: PoolT,
    qkv: Float[Array, "T NKK H"],
    cos: Float[Array, "T half"],
    sin: Float[Array, "T half"],
    slots: Int32[Array, " T"],
    implementation: str | None = None,
) -> tuple[PoolT, PoolT, Float[Array, "T N H"]]:
    """Rotate queries and keys by their position's angles; return the pools with keys and values, and the queries.

    ``qkv`` holds N query heads, K key heads and K value heads per token, in the pools' dtype; pools with scales take
    any of float32, bfloat16 and float16. Rotary embedding (Su et al. 2021) turns the two halves of a head into ``a *
    cos - b * sin`` and ``b * cos + a * sin``, in float32, rounded once to the dtype of ``qkv``. The rest is
    `kv_write`'s: slots, what is quantized, and pools that are written in place where they are donated.
    """
    for name, pool in (("k_pool", k_pool), ("v_pool", v_pool)):
        if isinstance(pool, ScaledPool) and (fault := find_pool_fault(name, pool)) is not None:
            raise ValueError(fault)
    quantized = isinstance(k_pool, ScaledPool)
    if len(k_pool.shape) != 4 or v_pool.shape != k_pool.shape or (
            v_pool.dtype != k_pool.dtype or isinstance(v_pool, ScaledPool) != quantized):
        raise ValueError(f"k_pool and v_pool must be [P, K, S, H] of one dtype, got {k_pool.dtype} {k_pool.shape} and "
                         f"{v_pool.dtype} {v_pool.shape}")
    kv_heads, head_dim = k_pool.shape[1], k_pool.shape[3]
    if head_dim % 2:
        raise ValueError(f"the head dim must be even, got {head_dim}")
    allowed = _FLOATS if quantized else (k_pool.dtype,)
    if qkv.ndim != 3 or qkv.shape[1] <= 2 * kv_heads or qkv.shape[2] != head_dim or qkv.dtype not in allowed:
        kinds = " or ".join(str(jnp.dtype(dtype)) for dtype in allowed)
        raise ValueError(f"qkv must be {kinds} [T, N + 2 * {kv_heads}, {head_dim}] with N >= 1, got {qkv.dtype} "
                         f"{qkv.shape}")
    tokens = qkv.shape[0]
    if slots.shape != (tokens,) or slots.dtype != jnp.int32:
        raise ValueError(f"slots must be int32 [{tokens}], got {slots.dtype} {slots.shape}")
    for name, table in (("cos", cos), ("sin", sin)):
        if table.shape != (tokens, head_dim // 2) or table.dtype != jnp.float32:
            raise ValueError(f"{name} must be float32 [{tokens}, {head_dim // 2}], got {table.dtype} {table.shape}")
    operands = {"k_pool": k_pool, "v_pool": v_pool, "qkv": qkv, "cos": cos, "sin": sin, "slots": slots}
    return registry.choose("rope_kv_write", implementation, operands=operands).run(**operands)
