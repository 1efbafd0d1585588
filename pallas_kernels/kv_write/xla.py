"""KV write in plain XLA."""

from __future__ import annotations

from jaxtyping import Array, Float, Int32

from pallas_kernels.scaled_pool import Pool, ScaledPool, quantize_heads


def kv_write_xla(
    k_pool: Pool,
    v_pool: Pool,
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int32[Array, " T"],
) -> tuple[Pool, Pool]:
    """Scatter whole [K, H] tokens; in place where the pools are donated."""
    return write_pool(k_pool, k, slots), write_pool(v_pool, v, slots)


def write_pool(pool: Pool, x: Float[Array, "T K H"], slots: Int32[Array, " T"]) -> Pool:
    """The same for one pool: of a cache that keeps one thing per token."""
    block_size = pool.shape[2]
    block, offset = slots // block_size, slots % block_size
    if not isinstance(pool, ScaledPool):
        return pool.at[block, :, offset].set(x)
    values, scales = quantize_heads(x, pool.dtype)
    return type(pool)(pool.values.at[block, :, offset].set(values), pool.scales.at[block, :, offset].set(scales))
