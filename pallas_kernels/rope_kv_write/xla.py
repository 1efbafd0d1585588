"""Rotary embedding in plain XLA, then `kv_write`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.kv_write import kv_write
from pallas_kernels.scaled_pool import Pool


def rope_kv_write_xla(
    k_pool: Pool,
    v_pool: Pool,
    qkv: Float[Array, "T NKK H"],
    cos: Float[Array, "T half"],
    sin: Float[Array, "T half"],
    slots: Int32[Array, " T"],
) -> tuple[Pool, Pool, Array]:
    """The write is by whichever implementation `kv_write` has for it."""
    kv_heads = k_pool.shape[1]
    heads = qkv.shape[1] - 2 * kv_heads
    q = rotate(qkv[:, :heads], cos, sin)
    k = rotate(qkv[:, heads : heads + kv_heads], cos, sin)
    k_pool, v_pool = kv_write(k_pool, v_pool, k, qkv[:, heads + kv_heads :], slots)
    return k_pool, v_pool, q


@jax.named_scope("rope")
def rotate(x: Float[Array, "T N H"], cos: Float[Array, "T half"], sin: Float[Array, "T half"]) -> Float[Array, "T N H"]:
    """Rotate the two halves of each head, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, None, :], sin[:, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
