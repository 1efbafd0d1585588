"""A pool of keys or values in int8: half the memory of bfloat16, and half of what attention has to read.

Symmetric, with a scale for each token and kv head, taken from that head alone when it is written. So nothing has to be
calibrated, and what a slot holds depends on nothing but its token: not on what was written before, beside or together
with it. Keys scaled per channel (KIVI, Liu et al. 2024) get by with two bits, but need the tokens of a block together;
at eight bits a scale per token and head, which vLLM calls ``int8_per_token_head``, costs little quality.

A scale is a factor on a whole key or value. So attention multiplies bytes, and applies a key's scale to its column of
scores and a value's to its column of weights, in float32; a value is never scaled by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int8

LARGEST = 127
SMALLEST = 2.0**-100
"""Heads whose largest number is below count as zeros: the reciprocal of their scale could overflow."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Int8Pool:
    """Numbers ``values * scales[..., None]``, in place of an array ``[P, K, S, H]`` of them."""

    values: Int8[Array, "P K S H"]
    scales: Float32[Array, "P K S"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype:
        """int8: how a number is kept."""
        return np.dtype(self.values.dtype)


Pool = Array | Int8Pool
"""Keys or values of a layer, ``[P, K, S, H]``."""


def quantize_heads(x: Float[Array, "*T H"]) -> tuple[Int8[Array, "*T H"], Float32[Array, " *T"]]:
    """Whole numbers from -127 to 127, rounded to nearest even, and each head's scale: its largest number over 127.

    A head that holds an infinity or no number gets zeros and a scale that is no number, and so do all products with it.
    """
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), -1)
    finite, some = jnp.isfinite(largest), largest >= SMALLEST
    factor = jnp.where(finite & some, LARGEST / largest, 0)
    values = jnp.where(finite[..., None], jnp.rint(wide * factor[..., None]), 0).astype(jnp.int8)
    return values, jnp.where(finite, jnp.where(some, largest * np.float32(1 / LARGEST), 0), jnp.nan)


def find_pool_fault(name: str, pool: Pool) -> str | None:
    """What is wrong with the shapes and dtypes of a pool, or ``None``."""
    if len(pool.shape) != 4:
        return f"{name} must be [P, K, S, H], got shape {pool.shape}"
    if isinstance(pool, Int8Pool):
        if pool.dtype != jnp.int8:
            return f"{name}.values must be int8, got {pool.dtype}"
        if pool.scales.shape != pool.shape[:3] or pool.scales.dtype != jnp.float32:
            return (f"{name}.scales must be float32 [P, K, S] = {pool.shape[:3]}, got {pool.scales.dtype} "
                    f"{pool.scales.shape}")
    return None
