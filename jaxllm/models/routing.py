"""Which experts a token takes, and with what weights: pure functions of its experts' logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxllm.models.moe_config import MoEConfig
from pallas_kernels.reductions import isolated_exp, row_sum

Routes = tuple[Float[Array, "T A"], Int[Array, "T A"]]
"""Weights, float32, and numbers of each token's experts, int32, the one of the highest score first."""


def route(logits: Float[Array, "T E"], config: MoEConfig, correction: Float[Array, " E"] | None = None) -> Routes:
    """The experts that tokens take, of equal scores the first. A row's bits do not depend on the other rows.

    correction: ``MoEConfig.correction``, float32.
    """
    if config.scores == "sparsemixer":
        return _sparsemixer(logits, config.nearness)
    # Without a correction the largest scores are those of the largest logits.
    choice = logits if correction is None else sigmoid(logits) + correction
    if config.groups > 1:
        choice = _of_best_groups(choice, config)
    _, experts = jax.lax.top_k(choice, config.experts_per_token)
    taken = jnp.take_along_axis(logits, experts, axis=-1)
    if config.scores == "sigmoid":
        weights = sigmoid(taken)
        if config.normalize:
            weights = weights / (row_sum(weights)[:, None] + 1e-20)
    else:
        weights = softmax(taken) if config.normalize else jnp.take_along_axis(softmax(logits), experts, axis=-1)
    return (weights if config.scale == 1 else jax.lax.optimization_barrier(weights * config.scale)), experts


def softmax(logits: Float[Array, "T E"]) -> Float[Array, "T E"]:
    """Over a row, in a fixed order."""
    powers = isolated_exp(logits - jnp.max(logits, -1, keepdims=True))
    return jax.lax.optimization_barrier(powers / row_sum(powers)[:, None])


def sigmoid(logits: Float[Array, "T E"]) -> Float[Array, "T E"]:
    """Of each."""
    return jax.lax.optimization_barrier(1 / (1 + isolated_exp(-logits)))


def _of_best_groups(choice: Float[Array, "T E"], config: MoEConfig) -> Float[Array, "T E"]:
    """The scores of experts in the best groups; the others' are minus infinity."""
    grouped = choice.reshape(choice.shape[0], config.groups, -1)
    best, _ = jax.lax.top_k(grouped, 1 if config.group_score == "largest" else 2)
    scores = best[..., 0] if best.shape[-1] == 1 else best[..., 0] + best[..., 1]
    _, groups = jax.lax.top_k(scores, config.taken_groups)
    is_taken = jnp.any(groups[:, :, None] == jnp.arange(config.groups), axis=1)
    return jnp.where(is_taken[:, :, None], grouped, -jnp.inf).reshape(choice.shape)


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
