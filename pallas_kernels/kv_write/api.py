"""The contract of KV write: put a step's keys and values into their slots of the paged cache."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels import registry


def kv_write(
    k_pool: Float[Array, "P K S H"],
    v_pool: Float[Array, "P K S H"],
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int32[Array, " T"],
    implementation: str | None = None,
) -> tuple[Float[Array, "P K S H"], Float[Array, "P K S H"]]:
    """Return the pools with token t's keys and values in slot ``slots[t]``, in place where the pools are donated.

    A slot is ``block * S + offset``. Real tokens have distinct slots; padding tokens carry any slot of block 0, the
    null block, whose contents are undefined. Slots outside the pools are undefined behaviour; ``cpu`` fails.
    """
    if k_pool.ndim != 4:
        raise ValueError(f"k_pool must be [P, K, S, H], got shape {k_pool.shape}")
    if v_pool.ndim != 4 or v_pool.shape[:3] != k_pool.shape[:3]:
        raise ValueError(f"v_pool must be {k_pool.shape} but for the head dim, got {v_pool.shape}")
    if slots.ndim != 1 or slots.dtype != jnp.int32:
        raise ValueError(f"slots must be int32 [T], got {slots.dtype} {slots.shape}")
    for name, values, pool in (("k", k, k_pool), ("v", v, v_pool)):
        expected = (slots.shape[0], pool.shape[1], pool.shape[3])
        if values.shape != expected:
            raise ValueError(f"{name} must be [T, K, H] = {expected}, got {values.shape}")
        if values.dtype != pool.dtype:
            raise ValueError(f"{name} must have its pool's dtype {pool.dtype}, got {values.dtype}")
    return registry.choose("kv_write", implementation).run(k_pool, v_pool, k, v, slots)
