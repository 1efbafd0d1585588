"""Which experts a token takes, and with what weights: pure functions of its experts' logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxllm.models.moe_config import MoEConfig
from pallas_kernels.reductions import isolated_exp, row_sum

Routes = tuple[Float[Array, "T A"], Int[Array, "T A"]]
"""Weights, float32, and numbers of each token's experts, int32, the one of the highest score first."""


def route(logits: Float[Array, "T E"], config: MoEConfig) -> Routes:
    """The experts that tokens take, of equal scores the first. A row's bits do not depend on the other rows."""
    if config.scores == "sparsemixer":
        return _sparsemixer(logits, config.nearness)
    best, experts = jax.lax.top_k(logits, config.experts_per_token)
    if config.normalize:
        return softmax(best), experts
    return jnp.take_along_axis(softmax(logits), experts, axis=-1), experts


def softmax(logits: Float[Array, "T E"]) -> Float[Array, "T E"]:
    """Over a row, in a fixed order."""
    powers = isolated_exp(logits - jnp.max(logits, -1, keepdims=True))
    return jax.lax.optimization_barrier(powers / row_sum(powers)[:, None])


def _sparsemixer(logits: Float[Array, "T E"], nearness: float) -> Routes:
    """The largest, then the largest of the others; a weight is the softmax over the logits near the one taken."""
    weights, experts, left = [], [], logits
    for _ in range(2):
        expert = jnp.argmax(left, -1, keepdims=True)
        largest = jnp.take_along_axis(left, expert, -1)
        size = jnp.maximum(jnp.abs(logits), largest)
        far = (largest - logits) / size > 2 * nearness
        powers = isolated_exp(jnp.where(far, -jnp.inf, left - largest))
        weights.append(jnp.take_along_axis(powers, expert, -1) / row_sum(powers)[:, None])
        experts.append(expert)
        left = jnp.where(jnp.arange(logits.shape[-1]) == expert, -jnp.inf, left)
    return jax.lax.optimization_barrier(jnp.concatenate(weights, -1)), jnp.concatenate(experts, -1).astype(jnp.int32)
