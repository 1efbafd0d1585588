"""Log-probabilities of chosen and most likely tokens, on the device."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxllm.sampling.filters import kept_tokens
from jaxllm.sampling.reductions import count, top_k
from jaxllm.sampling.rows import SamplingRows
from jaxllm.sampling.tiles import map_row_tiles
from pallas_kernels.reductions import isolated_exp, row_sum


class TokenLogprobs(NamedTuple):
    """Of each row: the target's log-probability and rank, and the most likely tokens in order."""

    logprob: Float[Array, " C"]
    rank: Int[Array, " C"]
    top_ids: Int[Array, "C K"]
    top_logprobs: Float[Array, "C K"]


class Normalized(NamedTuple):
    """Log-probabilities, not yet subtracted: those of ``values`` are ``(values - best) - log_total``."""

    values: Float[Array, "B V"]
    best: Float[Array, " B"]
    log_total: Float[Array, " B"]

    def logprobs(self, values: Float[Array, "B K"]) -> Float[Array, "B K"]:
        """The log-probabilities of some of the values."""
        return (values - self.best[:, None]) - self.log_total[:, None]

    def at(self, ids: Int[Array, "B K"]) -> Float[Array, "B K"]:
        """The log-probabilities of some ids."""
        return self.logprobs(jnp.take_along_axis(self.values, ids, axis=1))


def normalize(logits: Float[Array, "B V"]) -> Normalized:
    """Log-softmax in float32; a row's bits depend on that row alone."""
    best = jnp.max(logits, axis=-1)
    return Normalized(logits, best, _log(row_sum(isolated_exp(logits - best[:, None]))))


def normalize_kept(logits: Float[Array, "B V"], rows: SamplingRows) -> tuple[Normalized, Float[Array, " B"]]:
    """The distribution that each row draws from, -inf outside what its filters keep; and the probability, at the
    row's temperature, of what they keep. Greedy rows given temperature 0 as at 1."""
    kept, scaled = kept_tokens(logits, rows)
    weights = isolated_exp(scaled)
    kept_total = row_sum(jnp.where(kept, weights, 0))
    values = lax.optimization_barrier(jnp.where(kept, scaled, -jnp.inf))
    return Normalized(values, jnp.zeros_like(kept_total), _log(kept_total)), kept_total / row_sum(weights)


def _log(total: Float[Array, " B"]) -> Float[Array, " B"]:
    return lax.optimization_barrier(jnp.log(lax.optimization_barrier(total)))


def token_logprobs(logits: Float[Array, "C V"], targets: Int[Array, " C"], k: int) -> TokenLogprobs:
    """Float32 log-softmax of raw logits at the targets and at the ``min(k, V)`` most likely tokens.

    A row's results depend on that row alone, bit for bit, for any number of rows. rank is 1 + the number of tokens
    with a strictly larger logit. Ties among the most likely are in order of their ids. A negative target (a row for
    which no token could be chosen) gives NaN.
    """
    with jax.named_scope("token_logprobs"):
        return map_row_tiles(lambda *row: report(normalize(row[0]), row[1], k), logits, targets)


def report(distribution: Normalized, targets: Int[Array, " C"], k: int) -> TokenLogprobs:
    """``token_logprobs`` of a distribution."""
    values = distribution.values
    target_values = jnp.take_along_axis(values, jnp.maximum(targets, 0)[:, None], axis=1)
    top_values, top_ids = top_k(values, min(k, values.shape[1]))
    return TokenLogprobs(
        jnp.where(targets < 0, jnp.nan, distribution.logprobs(target_values)[:, 0]),
        1 + count(values > target_values),
        top_ids,
        distribution.logprobs(top_values),
    )


def mask_padded_vocab(logits: Float[Array, "B V"], num_valid: int) -> Float[Array, "B V"]:
    """Logits with -inf from ``num_valid`` (a static number) on: ids that exist in the weights but name no token."""
    if num_valid >= logits.shape[-1]:
        return logits
    ids = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.where(ids < num_valid, logits, -jnp.inf)
