"""Log-probabilities of chosen and most likely tokens, in plain XLA."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.reductions import isolated_exp
from pallas_kernels.sampling.api import LogNormalizer, TokenLogprobs
from pallas_kernels.sampling.columns import WHOLE, Columns
from pallas_kernels.sampling.tiles import map_row_tiles


def normalize(logits: Float[Array, "B V"], columns: Columns = WHOLE) -> LogNormalizer:
    """The log-softmax's parts in float32."""
    best = columns.max(logits)
    return LogNormalizer(best, log(columns.sum(isolated_exp(logits - best[:, None]))))


def log(total: Float[Array, " B"]) -> Float[Array, " B"]:
    """``jnp.log`` apart from its surroundings, so that every program computes the same bits."""
    return lax.optimization_barrier(jnp.log(lax.optimization_barrier(total)))


def logprobs_of(values: Float[Array, "B K"], normalizer: LogNormalizer) -> Float[Array, "B K"]:
    """The log-probabilities of some of the rows' values."""
    return (values - normalizer.best[:, None]) - normalizer.log_total[:, None]


def logprobs_at(ids: Int[Array, "B K"], logits: Float[Array, "B V"], normalizer: LogNormalizer,
                columns: Columns = WHOLE) -> Float[Array, "B K"]:
    """The log-probabilities of some ids."""
    return logprobs_of(columns.take(logits, ids), normalizer)


def report(
    values: Float[Array, "B V"], normalizer: LogNormalizer, targets: Int[Array, " B"], k: int,
    columns: Columns = WHOLE,
) -> TokenLogprobs:
    """``token_logprobs`` of values whose normalizer is known."""
    target_values = columns.take(values, jnp.maximum(targets, 0)[:, None])
    top_values, top_ids = columns.top_k(values, k)
    return TokenLogprobs(
        jnp.where(targets < 0, jnp.nan, logprobs_of(target_values, normalizer)[:, 0]),
        1 + columns.count(values > target_values),
        top_ids,
        logprobs_of(top_values, normalizer),
    )


def token_logprobs_xla(logits: Float[Array, "C V"], targets: Int[Array, " C"], k: int, columns: Columns = WHOLE
                       ) -> TokenLogprobs:
    """A few rows at a time on the CPU."""
    with jax.named_scope("token_logprobs"):
        return columns.map_rows(
            lambda *row: report(row[0], normalize(row[0], columns), row[1], k, columns), logits, targets)


def log_normalizer_xla(logits: Float[Array, "B V"]) -> LogNormalizer:
    """A few rows at a time on the CPU."""
    return map_row_tiles(normalize, logits)
