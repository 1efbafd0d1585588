"""Pools of keys or values in bytes: half the memory of bfloat16, and half of what attention has to read.

Symmetric, with a scale for each token and kv head, taken from that head alone when it is written. So nothing has to be
calibrated, nothing is cut off, and what a slot holds depends on nothing but its token: not on what was written before,
beside or together with it. Keys scaled per channel (KIVI, Liu et al. 2024) get by with two bits, but need the tokens of
a block together; at eight bits a scale per token and head, which vLLM calls ``int8_per_token_head`` and
``fp8_per_token_head``, costs little quality.

A scale is a factor on a whole key or value. So attention multiplies bytes, and applies a key's scale to its column of
scores and a value's to its column of weights, in float32; a value is never scaled by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, DTypeLike, Float, Float32

LARGEST = {jnp.dtype(jnp.int8): 127, jnp.dtype(jnp.float8_e4m3fn): 448}
"""By the dtype of a pool's numbers: what a head's largest number becomes."""

SMALLEST = 2.0**-100
"""Heads whose largest number is below count as zeros: the reciprocal of their scale could overflow."""


@dataclass(frozen=True)
class ScaledPool:
    """Numbers ``values * scales[..., None]``, in place of an array ``[P, K, S, H]`` of them."""

    values: Array
    scales: Float32[Array, "P K S"]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers."""
        return self.values.shape

    @property
    def dtype(self) -> np.dtype:
        """How a number is kept."""
        return np.dtype(self.values.dtype)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Int8Pool(ScaledPool):
    """A pool whose values are int8, whole numbers from -127 to 127: steps of equal size."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Float8Pool(ScaledPool):
    """A pool whose values are float8_e4m3fn, 3 bits after the first (OCP 8-bit floating point specification): errors
    are a part of each number, 1/16 at most, down to a 2^-15th of the largest."""


_DTYPES = {Int8Pool: jnp.dtype(jnp.int8), Float8Pool: jnp.dtype(jnp.float8_e4m3fn)}

Pool = Array | Int8Pool | Float8Pool
"""Keys or values of a layer, ``[P, K, S, H]``."""


def largest_of(pool: Pool) -> int:
    """What the largest number of a head becomes in a pool, or 0 where numbers are kept as they are."""
    return LARGEST[pool.dtype] if isinstance(pool, ScaledPool) else 0


def quantize_heads(
    x: Float[Array, "*T H"], dtype: DTypeLike = jnp.int8
) -> tuple[Float[Array, "*T H"], Float32[Array, " *T"]]:
    """Numbers of a dtype in ``LARGEST``, rounded to nearest even, and each head's scale: its largest number over that
    of the dtype.

    A head that holds an infinity or no number gets zeros and a scale that is no number, and so do all products with it.
    """
    most = LARGEST[jnp.dtype(dtype)]
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), -1)
    finite, some = jnp.isfinite(largest), largest >= SMALLEST
    factor = jnp.where(finite & some, most / largest, 0)
    scaled = wide * factor[..., None]
    scaled = jnp.where(finite[..., None], jnp.rint(scaled) if dtype == jnp.int8 else scaled, 0)
    return scaled.astype(dtype), jnp.where(finite, jnp.where(some, largest * np.float32(1 / most), 0), jnp.nan)


def find_pool_fault(name: str, pool: Array | ScaledPool) -> str | None:
    """What is wrong with the shapes and dtypes of a pool, or ``None``."""
    if len(pool.shape) != 4:
        return f"{name} must be [P, K, S, H], got shape {pool.shape}"
    if isinstance(pool, ScaledPool):
        expected = _DTYPES[type(pool)]
        if pool.dtype != expected:
            return f"{name}.values must be {expected}, got {pool.dtype}"
        if pool.scales.shape != pool.shape[:3] or pool.scales.dtype != jnp.float32:
            return (f"{name}.scales must be float32 [P, K, S] = {pool.shape[:3]}, got {pool.scales.dtype} "
                    f"{pool.scales.shape}")
    return None
