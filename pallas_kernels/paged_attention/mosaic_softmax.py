"""The arithmetic of the Mosaic GPU attention kernels: a softmax that grows by tiles, and by splits.

A row's state is the largest of its scores, in units of log2 and rounded to a whole number, the sum of their weights
relative to it, and the weighted sum of values. Everything is float32 and done row by row, so rows do not affect each
other; a tile or a split of which a row sees nothing leaves its state as it is, to the bit. Whole numbers make sums
move from one reference to another by powers of two, exactly: it does not matter then whether a compiler contracts the
product with the addition that follows, as it may in one kernel and not in another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

LOG2E = math.log2(math.e)
LN2 = math.log(2)


@dataclass(frozen=True)
class Scores:
    """How products of queries and keys become scores."""

    scale: float
    window: int | None
    soft_cap: float | None

    def of(self, products: Float[Array, "Q I"]) -> Float[Array, "Q I"]:
        """Scores in units of log2."""
        if self.soft_cap is None:
            return products * (self.scale * LOG2E)
        return jnp.tanh(products * (self.scale / self.soft_cap)) * (self.soft_cap * LOG2E)


def wide(rows: Float[Array, " Q"], shape: tuple[int, ...]) -> Float[Array, "Q I"]:
    """A number per row, along the row."""
    return lax.broadcast_in_dim(rows, shape, [0])


def whole(largest: Float[Array, " Q"]) -> Float[Array, " Q"]:
    """The whole number nearest to the largest score."""
    return lax.round(largest, lax.RoundingMethod.TO_NEAREST_EVEN)


def reference(largest: Float[Array, " Q"]) -> Float[Array, " Q"]:
    """What weights are relative to: the largest score, or zero for rows that have seen none (-inf)."""
    return jnp.where(largest == -jnp.inf, 0.0, largest)


def merge(
    first: tuple[Array, Array, Array], second: tuple[Array, Array, Array]
) -> tuple[Float[Array, " Q"], Float[Array, " Q"], Float[Array, "Q I"]]:
    """The state (largest, total, values) of two disjoint sets of keys."""
    largest, a, b = _factors(first[0], second[0])
    shape = first[2].shape
    return largest, first[1] * a + second[1] * b, first[2] * wide(a, shape) + second[2] * wide(b, shape)


def merge_sums(
    first: tuple[Array, Array], second: tuple[Array, Array]
) -> tuple[Float[Array, " Q"], Float[Array, " Q"]]:
    """The same without values."""
    largest, a, b = _factors(first[0], second[0])
    return largest, first[1] * a + second[1] * b


def _factors(first: Array, second: Array) -> tuple[Array, Array, Array]:
    """The larger of two largest scores, and what sums relative to each are multiplied with."""
    largest = jnp.maximum(first, second)
    relative = reference(largest)
    return largest, jnp.exp2(first - relative), jnp.exp2(second - relative)


def finish(
    largest: Float[Array, " Q"], total: Float[Array, " Q"], sinks: Float[Array, " Q"] | None
) -> tuple[Float[Array, " Q"], Float[Array, " Q"]]:
    """The factor that turns weighted sums of values into means, and the log-sum-exp; 0 and -inf for rows without keys.

    sinks: logits that count in the denominator.
    """
    if sinks is None:
        seen = total > 0
        return jnp.where(seen, 1.0 / jnp.where(seen, total, 1.0), 0.0), _lse(reference(largest), total)
    sinks = sinks * LOG2E
    with_sinks = jnp.maximum(largest, whole(sinks))
    rescale = jnp.exp2(largest - with_sinks)
    total = total * rescale + jnp.exp2(sinks - with_sinks)
    return rescale / total, _lse(with_sinks, total)


def _lse(largest: Array, total: Array) -> Array:
    return (largest + lax.log2(total)) * LN2
