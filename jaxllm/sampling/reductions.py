"""Reductions over the vocabulary whose result for a row depends on that row alone, bit for bit.

XLA promises no order for a float sum and picks code by shape, so a plain ``jnp.sum(x, -1)`` may change with the number
of rows. These have one order. Ties go to the lowest index. They also happen to be the fast forms on the CPU.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

LANES = 16
_CHUNK = 128


def ordered_sum(x: Float[Array, "B V"]) -> Float[Array, " B"]:
    """Row sums in a fixed order: 16 interleaved partial sums, then a tree.

    Monotone for non-negative terms: raising a term never lowers the sum, since rounding is monotone in each step.
    """
    rows, width = x.shape
    padded = -(-width // LANES) * LANES
    if padded != width:
        x = jnp.pad(x, ((0, 0), (0, padded - width)))
    lanes = jnp.sum(x.reshape(rows, padded // LANES, LANES), axis=1)
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def isolated_exp(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``exp`` kept out of the fusions around it, which would otherwise change its last bit with their shape."""
    return lax.optimization_barrier(jnp.exp(lax.optimization_barrier(x)))


def count(mask: Bool[Array, "B V"]) -> Int[Array, " B"]:
    """Number of true entries per row. Summed as float32, exact up to 2**24, because XLA's CPU vectorizes that."""
    return jnp.sum(jnp.where(mask, jnp.float32(1), jnp.float32(0)), axis=-1).astype(jnp.int32)


def argmax(x: Float[Array, "B V"]) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    """The index and value of each row's largest entry, ties to the lowest index; index -1 where that is NaN.

    A maximum and an equality test: three times as fast on the CPU as XLA's two-operand reduction.
    """
    x = lax.optimization_barrier(x)  # both passes must see the same bits
    best = jnp.max(x, axis=-1)
    ids = lax.broadcasted_iota(jnp.int32, x.shape, 1)
    index = jnp.min(jnp.where(x == best[:, None], ids, x.shape[-1]), axis=-1)
    return jnp.where(index == x.shape[-1], -1, index), best


def top_k(x: Float[Array, "B V"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k largest entries per row and their indices, in descending order, ties by lowest index.

    Exact in two steps, because a row's k best lie within the k chunks with the best maxima: pick those chunks, then
    select among their entries. ``x`` must hold no NaN and no -0.0 (which ``lax.top_k`` ranks below 0.0).
    """
    rows, width = x.shape
    if k > width:
        raise ValueError(f"k={k} is not allowed: at most the row width, which is {width}")
    chunks = -(-width // _CHUNK)
    if chunks <= 2 * k:
        values, ids = lax.top_k(x, k)
        return values, ids
    if chunks * _CHUNK != width:
        x = jnp.pad(x, ((0, 0), (0, chunks * _CHUNK - width)), constant_values=-jnp.inf)
    x = x.reshape(rows, chunks, _CHUNK)
    _, best = lax.top_k(jnp.max(x, axis=-1), k)
    best = jnp.sort(best, axis=-1)  # ascending, so that candidates stay in the order of their ids
    candidates = jnp.take_along_axis(x, best[:, :, None], axis=1).reshape(rows, k * _CHUNK)
    values, where = lax.top_k(candidates, k)
    return values, jnp.take_along_axis(best, where // _CHUNK, axis=1) * _CHUNK + where % _CHUNK
