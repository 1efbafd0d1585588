"""Log-probabilities of the distribution that is drawn from, and of ids that name no token."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxllm.sampling.rows import SamplingRows
from pallas_kernels.reductions import isolated_exp
from pallas_kernels.sampling import LogNormalizer, TokenLogprobs, token_logprobs
from pallas_kernels.sampling.columns import WHOLE, Columns
from pallas_kernels.sampling.filters import preceding, scale
from pallas_kernels.sampling.logprobs import log

__all__ = ["Distribution", "TokenLogprobs", "kept_distribution", "mask_padded_vocab", "token_logprobs"]

Distribution = tuple[Float[Array, "B V"], LogNormalizer, Float[Array, " B"]]
"""Values, what turns them into log-probabilities, and the mass that was kept."""


def kept_distribution(logits: Float[Array, "B V"], rows: SamplingRows, limit_value: Float[Array, " B"],
                      limit_token: Int[Array, " B"], columns: Columns = WHOLE) -> Distribution:
    """The distribution that each row draws from, -inf beyond the last token that its filters keep; and the
    probability, at the row's temperature, of what they keep. Greedy rows given temperature 0 as at 1."""
    scaled = scale(logits, rows.draws, columns)
    kept = preceding(logits, limit_value, limit_token + 1, columns)
    weights = isolated_exp(scaled)
    kept_total = columns.sum(jnp.where(kept, weights, 0))
    values = lax.optimization_barrier(jnp.where(kept, scaled, -jnp.inf))
    return values, LogNormalizer(jnp.zeros_like(kept_total), log(kept_total)), kept_total / columns.sum(weights)


def mask_padded_vocab(logits: Float[Array, "B V"], num_valid: int) -> Float[Array, "B V"]:
    """Logits with -inf from ``num_valid`` (a static number) on: ids that exist in the weights but name no token."""
    if num_valid >= logits.shape[-1]:
        return logits
    ids = lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    return jnp.where(ids < num_valid, logits, -jnp.inf)
