"""Softmax-weighted sums of values, one group of keys at a time (Milakov & Gimelshein 2018; Dao et al. 2022).

On the CPU the result for a query is bitwise the same for any number of queries and rows beside it, because

- the dots have at least two query rows (the one-row kernels add in another order), and both operands of those of
  float32 and float16 numbers lie along the sum (else kernels are chosen by the number of rows: other orders);
- ``exp`` stands between optimization barriers (fused with its neighbours, its last bit depends on the loop's shape);
- sums over keys have a fixed order (`row_sum`);
- a group in which a query sees no key leaves its state bitwise unchanged: its weights are 0 and its factor is 1.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from pallas_kernels.reductions import isolated_exp, row_sum

LOWEST = -1e30
"""Running maximum before any key was seen; finite, so that differences with it are never NaN."""

class Keys(NamedTuple):
    """G consecutive keys and values; with factors, those of quantized ones, if there are any."""

    k: Float[Array, "B G H"]
    v: Float[Array, "B G H"]
    positions: Int32[Array, " G"]
    k_scales: Float32[Array, "B G"] | None = None
    v_scales: Float32[Array, "B G"] | None = None


class State(NamedTuple):
    """What is known after some groups: largest logit, sum of weights and weighted sum of values relative to it."""

    largest: Float[Array, "B Q"]
    total: Float[Array, "B Q"]
    values: Float[Array, "B Q H"]


def start(batch: int, num_queries: int, head_dim: int, sinks: Float[Array, "B Q"] | None) -> State:
    """State before any key; a sink is a key of weight 1 relative to itself, without a value."""
    values = jnp.zeros((batch, num_queries, head_dim), jnp.float32)
    if sinks is None:
        return State(
            jnp.full((batch, num_queries), LOWEST, jnp.float32), jnp.zeros((batch, num_queries), jnp.float32), values
        )
    return State(sinks.astype(jnp.float32), jnp.ones((batch, num_queries), jnp.float32), values)


def add_group(
    state: State,
    q: Float[Array, "B Q H"],
    keys: Keys,
    visible: Bool[Array, "B Q G"],
    *,
    scale: float,
    soft_cap: float | None,
    biases: Float[Array, "B Q G"] | None = None,
) -> State:
    """Take in G more keys; ``visible`` says which query sees which; biases are added to the scores. Values that nobody
    sees must be finite."""
    factors = scale if keys.k_scales is None else scale * keys.k_scales[:, None, :]
    scores = jnp.einsum("bqh,bgh->bqg", q, keys.k, preferred_element_type=jnp.float32) * factors
    if soft_cap is not None:
        scores = lax.optimization_barrier(soft_cap * jnp.tanh(lax.optimization_barrier(scores / soft_cap)))
    if biases is not None:  # isolated, or a product and the sum may become one operation
        scores = lax.optimization_barrier(scores) + lax.optimization_barrier(biases)
    scores = jnp.where(visible, scores, -jnp.inf)
    largest = jnp.maximum(state.largest, jnp.max(scores, axis=-1))
    factor = isolated_exp(state.largest - largest)
    weights = isolated_exp(scores - largest[..., None])
    total = state.total * factor + row_sum(weights)
    if keys.v_scales is not None:
        weights = weights * keys.v_scales[:, None, :]
    return State(largest, total, state.values * factor[..., None] + _weighted_values(weights, keys.v))


def finish(state: State) -> tuple[Float[Array, "B Q H"], Float[Array, "B Q"]]:
    """Weighted mean of the values and log of the sum of exponentials; 0 and -inf for queries that saw nothing."""
    empty = state.total == 0
    total = jnp.where(empty, 1, state.total)
    lse = jnp.where(empty, -jnp.inf, state.largest + _log(total))
    return state.values / total[..., None], lse


def _weighted_values(weights: Float[Array, "B Q G"], v: Float[Array, "B G H"]) -> Float[Array, "B Q H"]:
    if v.dtype == jnp.bfloat16:
        return jnp.einsum("bqg,bgh->bqh", _to_bfloat16(weights), v, preferred_element_type=jnp.float32)
    turned = lax.optimization_barrier(v.transpose(0, 2, 1))
    return jnp.einsum("bqg,bhg->bqh", weights.astype(v.dtype), turned, preferred_element_type=jnp.float32)


def _to_bfloat16(x: Float[Array, " ..."]) -> Float[Array, " ..."]:
    """Round to nearest even, as ``astype`` does at several times the cost on CPUs for minding every kind of NaN."""
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return lax.bitcast_convert_type((rounded >> 16).astype(jnp.uint16), jnp.bfloat16)


def _log(x: Array) -> Array:
    return lax.optimization_barrier(jnp.log(lax.optimization_barrier(x)))
