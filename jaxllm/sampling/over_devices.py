"""Tokens of rows whose logits lie on several devices, each with a part of the vocabulary: nobody sees a whole row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxllm.models.shard import Shard
from jaxllm.sampling.sampler import NO_TOKEN
from pallas_kernels.sampling import DrawParameters
from pallas_kernels.sampling.noise import gumbel_rows
from pallas_kernels.sampling.reductions import argmax, holds_nan_or_inf


def sample_over_devices(logits: Float[Array, "B V/n"], draws: DrawParameters | None, shard: Shard
                        ) -> Int[Array, " B"]:
    """What ``sample`` chooses in its variants without filters, given each device's part of the logits, float32.

    Each device finds the best of its tokens, with the noise that each has in the whole vocabulary; then they exchange
    these, a value and an id for each row. Devices' parts are in the order of ids, and ties go to the lowest id. draws:
    ``None`` if every row is greedy.
    """
    with jax.named_scope("sample"):
        first = shard.index() * logits.shape[1]
        token_ids, best = argmax(logits if draws is None else _scores(logits, draws, first, shard))
        token_ids = jnp.where(holds_nan_or_inf(logits), NO_TOKEN, token_ids + first)
        bests, ids = lax.all_gather((best, token_ids), shard.axis)
        chosen = jnp.argmax(jnp.where(ids < 0, -jnp.inf, bests), axis=0)[None]
        best, token_ids = (jnp.take_along_axis(found, chosen, axis=0)[0] for found in (bests, ids))
        return jnp.where(jnp.isfinite(best) & jnp.all(ids >= 0, axis=0), token_ids, NO_TOKEN)


def _scores(logits: Float[Array, "B V/n"], draws: DrawParameters, first: Int[Array, ""], shard: Shard
            ) -> Float[Array, "B V/n"]:
    """What is drawn by: the logit in greedy rows, in others that of a distribution with its noise (Gumbel-max)."""
    largest = lax.pmax(jnp.max(logits, axis=-1), shard.axis)
    scaled = lax.optimization_barrier((logits - largest[:, None]) / draws.temperature[:, None])
    noise = gumbel_rows(*draws.noise_words, logits.shape[1], first)
    return lax.optimization_barrier(jnp.where(draws.greedy[:, None], logits, scaled + noise))
