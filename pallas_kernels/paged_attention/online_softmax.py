"""Softmax-weighted sums of values, one group of keys at a time (Milakov & Gimelshein 2018; Dao et al. 2022).

On the CPU the result for a query is bitwise the same for any number of queries and rows beside it, because

- the dots have at least two query rows (the one-row kernels add in another order), and in float32 the dots with the
  values at most `FLOAT32_ROWS` (from about 50 rows on, they run in a kernel that adds in another order);
- exponentials and sums over keys are spelled out (`pallas_kernels.reductions`);
- a group in which a query sees no key leaves its state bitwise unchanged: its weights are 0 and its factor is 1.

A group takes three passes over its scores beside the two dots: their maximum, the weights, and the sum of these. Masks
are computed within the passes, and the scale is part of the exponent, so neither has a pass of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.reductions import exp_of_multiple, isolated_exp, row_max, row_sum

LOWEST = -1e30
"""Running maximum before any key was seen; finite, so that differences with it are never NaN."""

FLOAT32_ROWS = 48
"""Most query rows in one float32 dot of weights and values."""


@dataclass(frozen=True)
class Softmax:
    """What turns dots of queries and keys into weights.

    Scores are kept in units that need no pass to convert to: dots as they are without a soft cap, else logits.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: Float[Array, " N"] | None = None

    @property
    def unit(self) -> float:
        """The logit of a score of 1."""
        return self.scale if self.soft_cap is None else 1.0


class State(NamedTuple):
    """What is known after some groups: largest score, sum of weights and weighted sum of values relative to it."""

    largest: Float[Array, "B Q"]
    total: Float[Array, "B Q"]
    values: Float[Array, "B Q H"]


class Visible(NamedTuple):
    """Which of the group's keys a query sees: those at positions ``first .. last``."""

    positions: Int32[Array, "B|1 G"]
    first: Int32[Array, "B Q"] | None  # None: from 0 on
    last: Int32[Array, "B Q"]


def start(batch: int, num_queries: int, head_dim: int, sinks: Float[Array, "B Q"] | None, softmax: Softmax) -> State:
    """State before any key; a sink is a key of weight 1 relative to itself, without a value."""
    values = jnp.zeros((batch, num_queries, head_dim), jnp.float32)
    if sinks is None:
        largest = jnp.full((batch, num_queries), LOWEST, jnp.float32)
        return State(largest, jnp.zeros((batch, num_queries), jnp.float32), values)
    return State(sinks / softmax.unit, jnp.ones((batch, num_queries), jnp.float32), values)


def add_group(
    state: State,
    q: Float[Array, "B Q H"],
    k: Float[Array, "B G H"],
    v: Float[Array, "B G H"],
    visible: Visible,
    softmax: Softmax,
) -> State:
    """Take in G more keys. Values that nobody sees must be finite."""
    scores = masked_scores(q, k, visible, softmax)
    largest = jnp.maximum(state.largest, row_max(scores).reshape(state.largest.shape))
    factor = decay(state.largest, largest, softmax)
    weights = relative_weights(scores, largest, softmax)
    total = add_to_total(state.total, factor, row_sum(weights).reshape(factor.shape))
    values = state.values * factor[..., None] + weighted_values(weights, v, q.shape[1])
    return State(largest, total, values)


def finish(state: State, softmax: Softmax) -> tuple[Float[Array, "B Q H"], Float[Array, "B Q"]]:
    """Weighted mean of the values and log of the sum of exponentials; 0 and -inf for queries that saw nothing."""
    empty = state.total == 0
    total = jnp.where(empty, 1, state.total)
    lse = jnp.where(empty, -jnp.inf, state.largest * softmax.unit + _log(total))
    return state.values / total[..., None], lse


def masked_scores(
    q: Float[Array, "B Q H"], k: Float[Array, "B G H"], visible: Visible, softmax: Softmax
) -> Float[Array, "BQ G"]:
    """Scores with -inf where the query does not see the key; the mask is fused into whatever reads them.

    Batch and queries are one axis: XLA shares a loop out over threads by its outermost one.
    """
    rows = q.shape[0] * q.shape[1]
    scores = jnp.einsum("bqh,bgh->bqg", q, k, preferred_element_type=jnp.float32)
    scores = lax.optimization_barrier(scores.reshape(rows, -1))
    if softmax.soft_cap is not None:
        cap = softmax.soft_cap
        scores = jnp.tanh(lax.optimization_barrier(scores * (softmax.scale / cap)))
        scores = lax.optimization_barrier(cap * lax.optimization_barrier(scores))
    positions = jnp.repeat(visible.positions, rows // visible.positions.shape[0], axis=0)
    seen = positions <= visible.last.reshape(rows, 1)
    if visible.first is not None:
        seen &= positions >= visible.first.reshape(rows, 1)
    return jnp.where(seen, scores, -jnp.inf)


def relative_weights(
    scores: Float[Array, "BQ G"], largest: Float[Array, "B Q"], softmax: Softmax
) -> Float[Array, "BQ G"]:
    """``exp`` of the scores less the largest so far."""
    return lax.optimization_barrier(exp_of_multiple(scores - largest.reshape(-1, 1), softmax.unit))


def decay(before: Float[Array, "B Q"], after: Float[Array, "B Q"], softmax: Softmax) -> Float[Array, "B Q"]:
    """What sums relative to an earlier maximum are multiplied by to be relative to a later one."""
    return isolated_exp((before - after) * softmax.unit)


def add_to_total(total: Float[Array, "*rows"], factor: Float[Array, "*rows"], more: Float[Array, "*rows"]) -> Array:
    """``total * factor + more``, rounded twice: in loops over few numbers only some are fused multiply-adds."""
    return lax.optimization_barrier(total * factor) + more


def weighted_values(weights: Float[Array, "BQ G"], v: Float[Array, "B G H"], queries: int) -> Float[Array, "B Q H"]:
    """Sums of the values in proportion to the weights, which are rounded to the values' dtype."""
    if v.dtype == jnp.bfloat16:
        weights = _to_bfloat16(weights)
    weights = weights.astype(v.dtype).reshape(v.shape[0], queries, -1)
    pieces = [weights]
    if v.dtype == jnp.float32:
        pieces = jnp.array_split(weights, -(-queries // FLOAT32_ROWS), axis=1)
    dots = [jnp.einsum("bqg,bgh->bqh", piece, v, preferred_element_type=jnp.float32) for piece in pieces]
    return dots[0] if len(dots) == 1 else jnp.concatenate(dots, axis=1)


def _to_bfloat16(x: Float[Array, " ..."]) -> Float[Array, " ..."]:
    """Round to nearest even, as ``astype`` does at several times the cost on CPUs for minding every kind of NaN."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return lax.bitcast_convert_type((rounded >> 16).astype(jnp.uint16), jnp.bfloat16)


def _log(x: Array) -> Array:
    return lax.optimization_barrier(jnp.log(lax.optimization_barrier(x)))
