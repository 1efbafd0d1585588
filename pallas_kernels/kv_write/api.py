"""The contract of KV write: put a step's keys and values into their slots of the paged cache."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels import registry
from pallas_kernels.scaled_pool import Pool, ScaledPool, find_pool_fault

_FLOATS = (jnp.float32, jnp.bfloat16, jnp.float16)


def kv_write[PoolT: Pool](
    k_pool: PoolT,
    v_pool: PoolT,
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int32[Array, " T"],
    implementation: str | None = None,
) -> tuple[PoolT, PoolT]:
    """Return the pools with token t's keys and values in slot ``slots[t]``, in place where the pools are donated.

    Pools are arrays ``[P, K, S, H]``, or both of them `Int8Pool`s or `Float8Pool`s, for which keys and values, then
    float32, bfloat16 or float16, are quantized (`quantize_heads`). A slot is ``block * S + offset``. Real tokens have
    distinct slots; padding tokens carry any slot of block 0, the null block, whose contents are undefined. Slots
    outside the pools are undefined behaviour; ``cpu`` fails.
    """
    for name, pool in (("k_pool", k_pool), ("v_pool", v_pool)):
        if (fault := find_pool_fault(name, pool)) is not None:
            raise ValueError(fault)
    if v_pool.shape[:3] != k_pool.shape[:3]:
        raise ValueError(f"v_pool must be {k_pool.shape} but for the head dim, got {v_pool.shape}")
    if type(k_pool) is not type(v_pool) and (isinstance(k_pool, ScaledPool) or isinstance(v_pool, ScaledPool)):
        raise ValueError("k_pool and v_pool must both be Int8Pools, both Float8Pools, or neither")
    if slots.ndim != 1 or slots.dtype != jnp.int32:
        raise ValueError(f"slots must be int32 [T], got {slots.dtype} {slots.shape}")
    for name, values, pool in (("k", k, k_pool), ("v", v, v_pool)):
        expected = (slots.shape[0], pool.shape[1], pool.shape[3])
        if values.shape != expected:
            raise ValueError(f"{name} must be [T, K, H] = {expected}, got {values.shape}")
        if isinstance(pool, ScaledPool):
            if values.dtype not in _FLOATS:
                raise ValueError(f"{name} must be float32, bfloat16 or float16, got {values.dtype}")
        elif values.dtype != pool.dtype:
            raise ValueError(f"{name} must have its pool's dtype {pool.dtype}, got {values.dtype}")
    operands = {"k_pool": k_pool, "v_pool": v_pool, "k": k, "v": v, "slots": slots}
    return registry.choose("kv_write", implementation, operands=operands).run(**operands)
