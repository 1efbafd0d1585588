"""Tokens of rows whose logits lie on several devices, each with a part of the vocabulary: nobody sees a whole row."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

from jaxllm.models.shard import Shard
from jaxllm.sampling.rows import SamplingRows
from jaxllm.sampling.sampler import NO_TOKEN, SampleOutput, sample
from jaxllm.sampling.state import SamplingState
from jaxllm.sampling.variant import Variant
from pallas_kernels.sampling import DrawParameters, TokenLogprobs
from pallas_kernels.sampling.columns import SplitColumns
from pallas_kernels.sampling.logprobs import token_logprobs_xla
from pallas_kernels.sampling.noise import gumbel_rows
from pallas_kernels.sampling.reductions import argmax, holds_nan_or_inf


def sample_over_devices(
    logits: Float[Array, "B V/n"],
    rows: SamplingRows,
    state: SamplingState | None,
    variant: Variant,
    mask: UInt32[Array, "B W"] | None,
    shard: Shard,
) -> tuple[SamplingState | None, SampleOutput]:
    """What ``sample`` gives without logits processors, given each device's part of the logits, float32; state, mask
    and results are whole, and the same on all devices.

    Tokens are those that one device chooses of the same logits: maxima, counts and the best of each device are
    exchanged, a number or a short list for each row, and each token has the noise that it has in the whole vocabulary.
    Sums of probabilities (top-p, log-probabilities) are of the devices' own sums, and differ in the last bits.
    """
    if variant > Variant.SAMPLED:
        return sample(logits, rows, state, variant, mask, columns=SplitColumns(shard.axis))
    draws = None if variant == Variant.GREEDY else rows.draws
    return state, SampleOutput(_plainly(logits, draws, shard))


def token_logprobs_over_devices(logits: Float[Array, "C V/n"], targets: Int[Array, " C"], k: int, shard: Shard
                                ) -> TokenLogprobs:
    """What ``token_logprobs`` gives. k: at most the size of the vocabulary."""
    return token_logprobs_xla(logits, targets, k, SplitColumns(shard.axis))


def _plainly(logits: Float[Array, "B V/n"], draws: DrawParameters | None, shard: Shard) -> Int[Array, " B"]:
    """In one exchange: each device finds the best of its tokens, and a value and an id of each row are gathered.

    Devices' parts are in the order of ids, and ties go to the lowest id. draws: ``None`` if every row is greedy.
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
