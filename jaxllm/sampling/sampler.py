"""The sampler: from a step's logits to its tokens, a pure function in a few forms.

Order of operations: logits processors, bias, penalties (repetition, frequency, presence), masks (allowed, banned,
min_tokens, the host's), temperature, min-p and top-k, top-p within what those left, and the draw. Log-probabilities are
of the raw logits, or of what is drawn from at the end.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

from jaxllm.sampling.filters import draw_filtered, scale
from jaxllm.sampling.logprobs import Normalized, normalize, normalize_kept, report
from jaxllm.sampling.masks import apply_mask
from jaxllm.sampling.noise import gumbel_rows
from jaxllm.sampling.penalties import apply_state
from jaxllm.sampling.processors import LogitsProcessor, apply_processors
from jaxllm.sampling.reductions import argmax, holds_nan_or_inf
from jaxllm.sampling.rows import SamplingRows
from jaxllm.sampling.state import SamplingState, count_tokens
from jaxllm.sampling.tiles import map_row_tiles
from jaxllm.sampling.variant import MAX_LOGPROBS, Variant

NO_TOKEN = -1
"""The token id of a row that has none: its logits hold NaN or +inf, or its masks leave nothing to choose."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SampleOutput:
    """A step's tokens, ``NO_TOKEN`` where a row has none. The rest is ``None`` in the GREEDY and SAMPLED variants.

    logprob, rank, top_ids, top_logprobs: as in ``token_logprobs``, of the raw or of the processed distribution,
    whichever the row asks for. raw_logprob, raw_top_logprobs: of the same tokens, in the raw one. kept_mass: the
    probability of the tokens that the row's filters kept, where it asks for processed ones. Zeros in rows that did not
    ask.
    """

    token_ids: Int[Array, " B"]
    logprob: Float[Array, " B"] | None = None
    rank: Int[Array, " B"] | None = None
    top_ids: Int[Array, "B K"] | None = None
    top_logprobs: Float[Array, "B K"] | None = None
    raw_logprob: Float[Array, " B"] | None = None
    raw_top_logprobs: Float[Array, "B K"] | None = None
    kept_mass: Float[Array, " B"] | None = None


class VocabLogprobs(NamedTuple):
    """Log-probabilities of every token: raw, processed, and the probability of what the filters kept; the last two are
    zeros in rows that do not ask for processed ones."""

    raw: Float[Array, "C V"]
    processed: Float[Array, "C V"]
    kept_mass: Float[Array, " C"]


def sample(
    logits: Float[Array, "B V"],
    rows: SamplingRows,
    state: SamplingState | None,
    variant: Variant,
    mask: UInt32[Array, "B W"] | None = None,
    *,
    processors: Sequence[LogitsProcessor] = (),
    max_logprobs: int = MAX_LOGPROBS,
) -> tuple[SamplingState | None, SampleOutput]:
    """Choose one token per row; the state comes back with the tokens counted, in the FULL and MASKED variants.

    logits: float32; -inf for ids that must never be chosen, such as a padded vocabulary's.
    mask: in the MASKED variant, which tokens may be chosen: bit i of word j is token 32 j + i.
    variant, processors, max_logprobs: static.
    A row's results depend on its own logits, parameters, mask and state alone, bit for bit.
    """
    if variant == Variant.GREEDY:
        return state, SampleOutput(_checked(logits, *argmax(logits)))
    if variant == Variant.SAMPLED:
        return state, SampleOutput(map_row_tiles(_draw, logits, rows))
    if state is None:
        raise ValueError(f"state=None is not allowed: the {variant.name} variant needs a SamplingState")
    if (mask is not None) != (variant == Variant.MASKED):
        raise ValueError("mask is not allowed but in the MASKED variant, which needs it")
    draw = functools.partial(_draw_full, state=state, processors=processors, max_logprobs=max_logprobs)
    output = map_row_tiles(draw, logits, rows, mask)
    return count_tokens(state, rows.slot, rows.position, output.token_ids), output


def vocab_logprobs(
    logits: Float[Array, "C V"], rows: SamplingRows, state: SamplingState, mask: UInt32[Array, "C W"],
    processors: Sequence[LogitsProcessor] = (),
) -> VocabLogprobs:
    """Every token's log-probability, with the very bits that ``sample`` reports for some."""
    raw = normalize(logits)

    def processed() -> tuple[Array, Array]:
        distribution, kept_mass = normalize_kept(_adjust(logits, rows, mask, state, processors), rows)
        wanted = rows.wants_processed
        logprobs = distribution.logprobs(distribution.values)
        return jnp.where(wanted[:, None], logprobs, 0), jnp.where(wanted, kept_mass, 0)

    nothing = jnp.zeros_like(logits), jnp.zeros(logits.shape[0], jnp.float32)
    return VocabLogprobs(
        raw.logprobs(logits), *lax.cond(jnp.any(rows.wants_processed), processed, lambda: nothing))


def _draw(logits: Float[Array, "B V"], rows: SamplingRows) -> Int[Array, " B"]:
    return _checked(logits, *argmax(_scores(logits, rows)))


def _draw_full(
    logits: Float[Array, "B V"], rows: SamplingRows, mask: UInt32[Array, "B W"] | None, *, state: SamplingState,
    processors: Sequence[LogitsProcessor], max_logprobs: int,
) -> SampleOutput:
    adjusted = _adjust(logits, rows, mask, state, processors)
    scores = _scores(adjusted, rows)
    drawn = lax.cond(
        jnp.any(rows.uses_filter), lambda: draw_filtered(adjusted, scores, rows), lambda: argmax(scores)
    )
    token_ids = _checked(logits, *drawn)
    if processors:
        token_ids = jnp.where(holds_nan_or_inf(adjusted), NO_TOKEN, token_ids)
    nothing = _no_logprobs(logits, max_logprobs)
    reported = lax.cond(
        jnp.any(rows.wants_logprobs), lambda: _reported(logits, adjusted, rows, token_ids, max_logprobs),
        lambda: nothing)
    wanted = rows.wants_logprobs
    return SampleOutput(token_ids, *(
        jnp.where(wanted.reshape(-1, *[1] * (values.ndim - 1)), values, 0) for values in reported))


def _adjust(
    logits: Float[Array, "B V"], rows: SamplingRows, mask: UInt32[Array, "B W"] | None, state: SamplingState,
    processors: Sequence[LogitsProcessor],
) -> Float[Array, "B V"]:
    """Logits after processors, biases, penalties and masks."""

    def changed() -> Array:
        return apply_state(apply_processors(logits, rows, state, processors), rows, state)

    adjusted = lax.cond(jnp.any(rows.uses_state), changed, lambda: logits)
    return adjusted if mask is None else apply_mask(adjusted, mask)


def _reported(
    logits: Float[Array, "B V"], adjusted: Float[Array, "B V"], rows: SamplingRows, token_ids: Int[Array, " B"], k: int
) -> tuple[Array, ...]:
    raw = normalize(logits)

    def chosen_distributions() -> tuple[Normalized, Array]:
        processed, kept_mass = normalize_kept(adjusted, rows)
        wanted = rows.wants_processed
        return jax.tree.map(
            lambda new, old: jnp.where(wanted.reshape(-1, *[1] * (new.ndim - 1)), new, old),
            (processed, kept_mass), (raw, jnp.zeros_like(kept_mass)))

    distribution, kept_mass = lax.cond(
        jnp.any(rows.wants_processed), chosen_distributions, lambda: (raw, jnp.zeros(logits.shape[0], jnp.float32)))
    of_tokens = report(distribution, token_ids, k)
    ids = jnp.concatenate([jnp.maximum(token_ids, 0)[:, None], of_tokens.top_ids], axis=1)
    raw_logprobs = raw.at(ids)
    return (*of_tokens, raw_logprobs[:, 0], raw_logprobs[:, 1:], kept_mass)


def _scores(logits: Float[Array, "B V"], rows: SamplingRows) -> Float[Array, "B V"]:
    """What the draw takes the argmax of: logits in greedy rows, else scaled logits plus noise (Gumbel-max)."""
    noise = gumbel_rows(*rows.noise_words, logits.shape[-1])
    scores = jnp.where(rows.greedy[:, None], logits, scale(logits, rows) + noise)
    # Apart from what consumes them, so that every variant computes the same bits.
    return lax.optimization_barrier(scores)


def _checked(
    logits: Float[Array, "B V"], token_ids: Int[Array, " B"], best: Float[Array, " B"]
) -> Int[Array, " B"]:
    return jnp.where(jnp.isfinite(best) & ~holds_nan_or_inf(logits), token_ids, NO_TOKEN)


def _no_logprobs(logits: Float[Array, "B V"], max_logprobs: int) -> tuple[Array, ...]:
    rows, vocab_size = logits.shape
    one, top = jnp.zeros(rows, jnp.float32), jnp.zeros((rows, min(max_logprobs, vocab_size)), jnp.float32)
    return one, one.astype(jnp.int32), top.astype(jnp.int32), top, one, top, one
