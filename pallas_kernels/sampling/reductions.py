"""Reductions over the vocabulary whose result for a row depends on that row alone, bit for bit.

Sums are in the order of ``pallas_kernels.reductions``. Ties go to the lowest index throughout.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.reductions import fold

_LANES = 32


def count(mask: Bool[Array, "B V"]) -> Int[Array, " B"]:
    """Number of true entries per row, at most 2**24 (float32 sums of integers are exact in any order up to there)."""
    return jnp.sum(fold(mask.astype(jnp.float32)), axis=-1).astype(jnp.int32)


def holds_nan_or_inf(x: Float[Array, "B V"]) -> Bool[Array, " B"]:
    """Which rows hold NaN or +inf (-inf is ordinary). By a sum, since XLA's CPU maximum may drop a NaN."""
    total = jnp.sum(fold(x * jnp.float32(2.0**-24)), axis=-1)  # scaled so that finite entries cannot overflow
    return ~(total < jnp.inf)


def argmax(x: Float[Array, "B V"]) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """The index and value of each row's largest entry, ties to the lowest index. Of a row with NaN, any of each.

    Maxima of chunks, then the entry within the best chunk.
    """
    chunks = _in_chunks(x, 256)
    maxima = _chunk_maxima(chunks)
    best = jnp.argmax(maxima, axis=-1).astype(jnp.int32)
    entries = jnp.take_along_axis(chunks, best[:, None, None], axis=1)[:, 0]
    index = best * chunks.shape[2] + jnp.argmax(entries, axis=-1).astype(jnp.int32)
    return index, jnp.max(maxima, axis=-1)


def top_k(x: Float[Array, "B V"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k largest entries per row and their indices, in descending order, ties by lowest index; no NaN in ``x``.

    Exact in two steps, because a row's k best lie within the k chunks with the best maxima: pick those chunks, then
    select among their entries.
    """
    rows, width = x.shape
    if k > width:
        raise ValueError(f"k={k} is not allowed: at most the row width, which is {width}")
    chunks = _in_chunks(x, 128)
    size = chunks.shape[2]
    if chunks.shape[1] <= 2 * k:
        return lax.top_k(_without_negative_zero(x), k)
    _, best = lax.top_k(_without_negative_zero(_chunk_maxima(chunks)), k)
    best = jnp.sort(best, axis=-1)  # ascending, so that candidates stay in the order of their ids
    candidates = jnp.take_along_axis(chunks, best[:, :, None], axis=1).reshape(rows, k * size)
    values, where = lax.top_k(_without_negative_zero(candidates), k)
    return values, jnp.take_along_axis(best, where // size, axis=1) * size + where % size


def _in_chunks(x: Float[Array, "B V"], size: int) -> Float[Array, "B n c"]:
    """Rows cut into chunks of ``size`` or a divisor of it that fits exactly; padded with -inf if that would be tiny."""
    rows, width = x.shape
    if (divisor := math.gcd(width, size)) >= _LANES:
        return x.reshape(rows, -1, divisor)
    return jnp.pad(x, ((0, 0), (0, -width % size)), constant_values=-jnp.inf).reshape(rows, -1, size)


def _chunk_maxima(chunks: Float[Array, "B n c"]) -> Float[Array, "B n"]:
    rows, number, size = chunks.shape
    chunks = chunks.reshape(rows, number, size // _LANES, _LANES)
    parts = [chunks[:, :, i] for i in range(size // _LANES)]
    while len(parts) > 1:
        parts = [jnp.maximum(left, right) for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return jnp.max(lax.optimization_barrier(parts[0]), axis=-1)


def _without_negative_zero(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    return jnp.where(x == 0, 0.0, x)  # lax.top_k ranks -0.0 below 0.0
