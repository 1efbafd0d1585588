"""KV write in plain XLA."""

from __future__ import annotations

from jaxtyping import Array, Float, Int32


def kv_write_xla(
    k_pool: Float[Array, "P K S H"],
    v_pool: Float[Array, "P K S H"],
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int32[Array, " T"],
) -> tuple[Array, Array]:
    """Scatter whole [K, H] tokens; in place where the pools are donated."""
    block_size = k_pool.shape[2]
    block, offset = slots // block_size, slots % block_size
    return k_pool.at[block, :, offset].set(k), v_pool.at[block, :, offset].set(v)
