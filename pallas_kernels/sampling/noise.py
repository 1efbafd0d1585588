"""Gumbel noise as a pure function of (seed, sample index, position, token id): no state, no batch, no vocabulary size.

The random integers come from Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3"), used twice: once per row, to turn the seed's two words as key and (sample index, position) as counter into
the row's key; once per token, with the token id as counter. They are the same on every platform.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA  # the key schedule's constant
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24
_SERIES_BELOW = 2.0**-10


def threefry2x32(key0: Array, key1: Array, counter0: Array, counter1: Array) -> tuple[Array, Array]:
    """Encrypt two 32-bit words with a two-word key, elementwise (all operands uint32, broadcast together).

    ``jax.random`` has the same cipher, but its CPU lowering loops over the rounds through memory: 6 times slower.
    """
    keys = (key0, key1, key0 ^ key1 ^ jnp.uint32(_PARITY))
    x0, x1 = counter0 + keys[0], counter1 + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << rotation) | (x1 >> (32 - rotation))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1


def token_bits(
    seed_high: UInt32[Array, " B"],
    seed_low: UInt32[Array, " B"],
    sample_index: UInt32[Array, " B"],
    position: UInt32[Array, " B"],
    vocab_size: int,
    first_id: Int[Array, ""] | int = 0,
) -> UInt32[Array, "B V"]:
    """32 random bits for each row and token id, from ``first_id`` on. Token i's bits do not depend on the range."""
    key0, key1 = threefry2x32(seed_high, seed_low, sample_index, position)
    ids = lax.broadcasted_iota(jnp.uint32, (seed_low.shape[0], vocab_size), 1)
    if not isinstance(first_id, int) or first_id:
        ids = ids + jnp.asarray(first_id).astype(jnp.uint32)
    bits, _ = threefry2x32(key0[:, None], key1[:, None], ids, jnp.zeros((), jnp.uint32))
    return bits


def gumbel(bits: UInt32[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Standard Gumbel variables from random bits: ``-log(E)`` with ``E`` exponential.

    ``E = -log(1 - u)`` for u in (0, 1) near ``(bits + 1/2) / 2**32``. The winners of an argmax have a small ``E``,
    hence a small u, where float32 keeps all 32 bits: the largest value is 22.9 and unlikely tokens get their share
    down to probabilities of 2**-32 (``-log(u)`` would have ended at 2**-24). Every value is finite.
    """
    uniform = jnp.minimum((bits.astype(jnp.float32) + 0.5) * jnp.float32(2.0**-32), _LARGEST_BELOW_ONE)
    # Three terms of the series are exact in float32 where 1 - u would lose digits; log1p costs twice a log on the CPU.
    series = uniform * (1 + uniform * (0.5 + uniform * jnp.float32(1 / 3)))
    return -jnp.log(jnp.where(uniform < _SERIES_BELOW, series, -jnp.log(1 - uniform)))


def gumbel_rows(
    seed_high: UInt32[Array, " B"],
    seed_low: UInt32[Array, " B"],
    sample_index: UInt32[Array, " B"],
    position: UInt32[Array, " B"],
    vocab_size: int,
    first_id: Int[Array, ""] | int = 0,
) -> Float[Array, "B V"]:
    """The noise of each row and token id, from ``first_id`` on."""
    with jax.named_scope("gumbel"):
        return gumbel(token_bits(seed_high, seed_low, sample_index, position, vocab_size, first_id))
