"""Sums, maxima and exponentials with fixed arithmetic, so that a row's result never depends on how many rows there are.

XLA promises no order for a float sum, and on CPUs picks its code by the size of the whole array: ``jnp.sum(x, -1)``,
or a reduction over lanes, changes with the number of rows. Here the operations are spelled out elementwise; they also
take what computes their operand into the same loop, where XLA's own reductions may first write it to memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

FOLD = 8

_EXP2_POLYNOMIAL = (1.53533620e-4, 1.33988751e-3, 9.61843736e-3, 5.55033247e-2, 2.40226479e-1, 6.93147203e-1, 1.0)
"""Of 2^f for f in -1/2 .. 1/2, from the sixth power down: minimax in the relative error, 2e-9; exactly 1 at 0."""

_ROUNDING = 1.5 * 2**23
"""Added to a float32 of moderate size, this leaves its nearest integer in the low bits of the sum."""


def fold(x: Float[Array, "*rows D"], combine: Callable[[Array, Array], Array] = jnp.add) -> Float[Array, "*rows W"]:
    """Combine (add up) the ``FOLD`` parts of each row, end to end, by a fixed tree: one loop that reads x once."""
    width = x.shape[-1]
    size = -(-width // FOLD)
    parts = [x[..., start : start + size] for start in range(0, width, size)]
    missing = size - parts[-1].shape[-1]
    if missing:
        neutral = 0 if combine is jnp.add else -jnp.inf
        parts[-1] = jnp.pad(parts[-1], [(0, 0)] * (x.ndim - 1) + [(0, missing)], constant_values=neutral)
    while len(parts) > 1:
        pairs = [combine(left, right) for left, right in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return lax.optimization_barrier(parts[0])  # or XLA fuses all the steps and computes each many times


def row_sum(x: Float[Array, "*rows D"]) -> Float[Array, "*rows"]:
    """Sum over the last axis in a fixed order.

    Monotone for non-negative terms: raising a term never lowers the sum, since rounding is monotone in each step.
    """
    while x.shape[-1] > 1:
        x = fold(x)
    return x[..., 0]


def row_max(x: Float[Array, "*rows D"]) -> Float[Array, "*rows"]:
    """Largest over the last axis; for the fusion with what computes x, since a maximum has no rounding to fix."""
    while x.shape[-1] > 1:
        x = fold(x, jnp.maximum)
    return x[..., 0]


def isolated_exp(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``exp`` kept out of the fusions around it, which would otherwise change its last bit with their shape."""
    return lax.optimization_barrier(jnp.exp(lax.optimization_barrier(x)))


def exp_of_multiple(x: Float[Array, "*shape"], factor: float) -> Float[Array, "*shape"]:
    """``exp(factor * x)`` in float32 for products up to 87: 0 where it would be below 2^-126, and exactly 1 at 0.

    The relative error is below 16 x 2^-24 for products from -20 to 0 (6 to 10 are measured), and grows with the
    product beyond, as the rounding of the product itself does. A CPU takes less than half the time of ``jnp.exp``.
    Each product has one use, an addition, so that it is contracted to a fused multiply-add in any fusion; still, a
    vector's bits may differ from a scalar's: use it where the last axis is long, and at all times the same.
    """
    per_unit = factor * math.log2(math.e)
    shifted = x * per_unit + _ROUNDING
    fraction = x - (shifted - _ROUNDING) * (1 / per_unit)
    degree = len(_EXP2_POLYNOMIAL) - 1
    first, *rest = (value * per_unit ** (degree - power) for power, value in enumerate(_EXP2_POLYNOMIAL))
    result = jnp.float32(first)
    for coefficient in rest:
        result = result * fraction + coefficient
    exponent = lax.bitcast_convert_type(shifted, jnp.int32) << 23
    result = lax.bitcast_convert_type(lax.bitcast_convert_type(result, jnp.int32) + exponent, jnp.float32)
    return jnp.where(x < -126 / per_unit, 0.0, result)
