"""Sums and exponentials with fixed arithmetic, so that a row's result never depends on how many rows there are.

XLA promises no order for a float sum, and on CPUs picks its code by the size of the whole array: ``jnp.sum(x, -1)``,
or a reduction over lanes, changes with the number of rows. Here the additions are spelled out elementwise; they also
take what computes their operand into the same loop, where XLA's own reductions may first write it to memory.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

FOLD = 8


def fold(x: Float[Array, "*rows D"]) -> Float[Array, "*rows W"]:
    """Add up the ``FOLD`` parts of each row, end to end, by a fixed tree: one loop that reads x once."""
    width = x.shape[-1]
    size = -(-width // FOLD)
    parts = [x[..., start : start + size] for start in range(0, width, size)]
    parts[-1] = jnp.pad(parts[-1], [(0, 0)] * (x.ndim - 1) + [(0, size - parts[-1].shape[-1])])
    while len(parts) > 1:
        pairs = [left + right for left, right in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return lax.optimization_barrier(parts[0])  # or XLA fuses all the steps and computes each many times


def row_sum(x: Float[Array, "*rows D"]) -> Float[Array, "*rows"]:
    """Sum over the last axis in a fixed order.

    Monotone for non-negative terms: raising a term never lowers the sum, since rounding is monotone in each step.
    """
    while x.shape[-1] > 1:
        x = fold(x)
    return x[..., 0]


def isolated_exp(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``exp`` kept out of the fusions around it, which would otherwise change its last bit with their shape."""
    return lax.optimization_barrier(jnp.exp(lax.optimization_barrier(x)))
