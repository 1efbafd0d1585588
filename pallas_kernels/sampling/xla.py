"""Drawing tokens in plain XLA: argmax alone where every row is greedy, noise where one is not, and so on."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.sampling.api import DrawParameters, SampledRows, TokenLogprobs
from pallas_kernels.sampling.columns import WHOLE, Columns
from pallas_kernels.sampling.filters import draw_filtered, last_kept, scale
from pallas_kernels.sampling.logprobs import normalize, report
from pallas_kernels.sampling.noise import gumbel_rows
from pallas_kernels.sampling.reductions import holds_nan_or_inf


def sample_rows_xla(
    logits: Float[Array, "B V"],
    draws: DrawParameters | None,
    filters: bool,
    raw: Float[Array, "B V"] | None,
    wants_logprobs: Bool[Array, " B"] | None,
    wants_limit: Bool[Array, " B"] | None,
    k: int,
    columns: Columns = WHOLE,
) -> SampledRows:
    """A few rows at a time on the CPU unless argmax is all there is to do. columns: those of ``logits`` and ``raw``."""
    sample = functools.partial(_sample, filters=filters, k=k, columns=columns)
    if draws is None and wants_logprobs is None:
        return sample(logits, None, raw, None, None)
    return columns.map_rows(sample, logits, draws, raw, wants_logprobs, wants_limit)


def _sample(
    logits: Float[Array, "B V"], draws: DrawParameters | None, raw: Float[Array, "B V"] | None,
    wants_logprobs: Bool[Array, " B"] | None, wants_limit: Bool[Array, " B"] | None, *, filters: bool, k: int,
    columns: Columns,
) -> SampledRows:
    limit = _no_limit(logits, columns)
    if draws is None:
        drawn = columns.argmax(logits)
    else:
        drawn = _draw(logits, draws, columns, filters=filters)
        if wants_limit is not None and filters:
            limit = _limit(logits, draws, wants_limit & draws.filtered, columns)
    token_ids = _checked(logits, raw, *drawn, columns)
    reported = _no_logprobs(logits, k)
    if wants_logprobs is not None:
        values = logits if raw is None else raw
        found = lax.cond(
            jnp.any(wants_logprobs),
            lambda: report(values, normalize(values, columns), token_ids, k, columns), lambda: reported)
        reported = jax.tree.map(functools.partial(_where, wants_logprobs), found, reported)
    return SampledRows(token_ids, *limit, reported)


def _draw(logits: Float[Array, "B V"], draws: DrawParameters, columns: Columns, *, filters: bool
          ) -> tuple[Int[Array, " B"], Float[Array, " B"]]:
    scores = _scores(logits, draws, columns)
    if not filters:
        return columns.argmax(scores)
    drawn: tuple[Array, Array] = lax.cond(
        jnp.any(draws.filtered & ~draws.greedy),
        lambda: draw_filtered(logits, scores, draws, columns), lambda: columns.argmax(scores))
    return drawn


def _limit(logits: Float[Array, "B V"], draws: DrawParameters, wanted: Bool[Array, " B"],
           columns: Columns) -> tuple[Float[Array, " B"], Int[Array, " B"]]:
    none = _no_limit(logits, columns)
    value, token = lax.cond(jnp.any(wanted), lambda: last_kept(logits, draws, columns), lambda: none)
    return _where(wanted, value, none[0]), _where(wanted, token, none[1])


def _scores(logits: Float[Array, "B V"], draws: DrawParameters, columns: Columns) -> Float[Array, "B V"]:
    """What the draw takes the argmax of: logits in greedy rows, else scaled logits plus noise (Gumbel-max)."""
    noise = gumbel_rows(*draws.noise_words, logits.shape[-1], columns.first(logits))
    scores = jnp.where(draws.greedy[:, None], logits, scale(logits, draws, columns) + noise)
    # Apart from what consumes them, so that every branch computes the same bits.
    return lax.optimization_barrier(scores)


def _checked(
    logits: Float[Array, "B V"], raw: Float[Array, "B V"] | None, token_ids: Int[Array, " B"], best: Float[Array, " B"],
    columns: Columns,
) -> Int[Array, " B"]:
    odd = holds_nan_or_inf(logits)
    if raw is not None:
        odd |= holds_nan_or_inf(raw)
    return jnp.where(jnp.isfinite(best) & ~columns.any(odd), token_ids, -1)


def _where(condition: Bool[Array, " B"], values: Array, others: Array) -> Array:
    return jnp.where(condition.reshape(-1, *[1] * (values.ndim - 1)), values, others)


def _no_limit(logits: Float[Array, "B V"], columns: Columns) -> tuple[Float[Array, " B"], Int[Array, " B"]]:
    rows = logits.shape[0]
    return jnp.full(rows, -jnp.inf), jnp.full(rows, columns.size(logits), jnp.int32)


def _no_logprobs(logits: Float[Array, "B V"], k: int) -> TokenLogprobs:
    one, top = jnp.zeros(logits.shape[0], jnp.float32), jnp.zeros((logits.shape[0], k), jnp.float32)
    return TokenLogprobs(one, one.astype(jnp.int32), top.astype(jnp.int32), top)
