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
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxllm.sampling.logprobs import kept_distribution
from jaxllm.sampling.masks import apply_mask
from jaxllm.sampling.penalties import apply_state
from jaxllm.sampling.processors import LogitsProcessor, apply_processors
from jaxllm.sampling.rows import SamplingRows
from jaxllm.sampling.state import SamplingState, count_tokens
from jaxllm.sampling.variant import MAX_LOGPROBS, Variant
from pallas_kernels.sampling import LogNormalizer, SampledRows, log_normalizer, sample_rows
from pallas_kernels.sampling.columns import WHOLE, Columns
from pallas_kernels.sampling.logprobs import logprobs_at, logprobs_of, normalize, report
from pallas_kernels.sampling.xla import sample_rows_xla

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
    columns: Columns = WHOLE,
) -> tuple[SamplingState | None, SampleOutput]:
    """Choose one token per row; the state comes back with the tokens counted, in the FULL and MASKED variants.

    logits: float32; -inf for ids that must never be chosen, such as a padded vocabulary's.
    mask: in the MASKED variant, which tokens may be chosen: bit i of word j is token 32 j + i.
    columns: what of the vocabulary the logits have, ``[B, V/n]`` where it is cut over devices; state and mask are
        whole. Only in the FULL and MASKED variants, and without processors (``sample_over_devices`` has the others).
    variant, processors, max_logprobs, columns: static.
    A row's results depend on its own logits, parameters, mask and state alone, bit for bit.
    """
    if variant == Variant.GREEDY:
        return state, SampleOutput(sample_rows(logits).token_ids)
    if variant == Variant.SAMPLED:
        return state, SampleOutput(sample_rows(logits, rows.draws, filters=False).token_ids)
    if state is None:
        raise ValueError(f"state=None is not allowed: the {variant.name} variant needs a SamplingState")
    if (mask is not None) != (variant == Variant.MASKED):
        raise ValueError("mask is not allowed but in the MASKED variant, which needs it")
    choose = functools.partial(_choose, k=min(max_logprobs, state.counts.shape[1]), columns=columns)

    def unchanged() -> SampleOutput:
        return choose(logits, None, rows)

    def changed() -> SampleOutput:
        def tile(logits: Array, rows: SamplingRows, mask: Array | None) -> SampleOutput:
            return choose(_adjust(logits, rows, mask, state, processors, columns), logits, rows)

        return columns.map_rows(tile, logits, rows, mask)

    output = changed() if mask is not None else lax.cond(jnp.any(rows.uses_state), changed, unchanged)
    return count_tokens(state, rows.slot, rows.position, output.token_ids), output


def vocab_logprobs(
    logits: Float[Array, "C V"], rows: SamplingRows, state: SamplingState, mask: UInt32[Array, "C W"],
    processors: Sequence[LogitsProcessor] = (),
) -> VocabLogprobs:
    """Every token's log-probability, with the very bits that ``sample`` reports for some."""
    wanted = rows.wants_processed

    def processed() -> tuple[Array, Array]:
        adjusted = _adjust(logits, rows, mask, state, processors)
        sampled = sample_rows(adjusted, rows.draws, wants_limit=wanted)
        values, normalizer, kept_mass = kept_distribution(adjusted, rows, sampled.limit_value, sampled.limit_token)
        return _where(wanted, logprobs_of(values, normalizer)), _where(wanted, kept_mass)

    nothing = jnp.zeros_like(logits), jnp.zeros(logits.shape[0], jnp.float32)
    raw = logprobs_of(logits, log_normalizer(logits))
    return VocabLogprobs(raw, *lax.cond(jnp.any(wanted), processed, lambda: nothing))


def _choose(logits: Float[Array, "B V"], raw: Float[Array, "B V"] | None, rows: SamplingRows, *, k: int,
            columns: Columns) -> SampleOutput:
    """Tokens drawn from ``logits``, and what is reported of them. raw: the logits before they were adjusted."""
    processed = rows.wants_logprobs & rows.wants_processed
    if columns is WHOLE:
        sampled = sample_rows(
            logits, rows.draws, raw=raw, wants_logprobs=rows.wants_logprobs, wants_limit=processed, k=k)
    else:
        sampled = sample_rows_xla(logits, rows.draws, True, raw, rows.wants_logprobs, processed, k, columns)
    reported = sampled.logprobs
    mode = lax.cond(
        jnp.any(processed),
        lambda: columns.map_rows(
            functools.partial(_processed, k=k, columns=columns), logits, raw, rows, sampled, processed),
        lambda: (*reported, reported.logprob, reported.top_logprobs, jnp.zeros_like(reported.logprob)))
    return SampleOutput(sampled.token_ids, *mode)


def _processed(logits: Float[Array, "B V"], raw: Float[Array, "B V"] | None, rows: SamplingRows, sampled: SampledRows,
               wanted: Bool[Array, " B"], *, k: int, columns: Columns) -> tuple[Array, ...]:
    """What ``SampleOutput`` holds besides the tokens, in a batch of which some want the processed distribution."""
    values, normalizer, kept_mass = kept_distribution(
        logits, rows, sampled.limit_value, sampled.limit_token, columns)
    of_tokens = report(values, normalizer, sampled.token_ids, k, columns)
    ids = jnp.concatenate([jnp.maximum(sampled.token_ids, 0)[:, None], of_tokens.top_ids], axis=1)
    raw_values = logits if raw is None else raw
    raw_logprobs = logprobs_at(ids, raw_values, _normalizer(raw_values, columns), columns)
    old = sampled.logprobs
    new = (*of_tokens, raw_logprobs[:, 0], raw_logprobs[:, 1:], kept_mass)
    return jax.tree.map(functools.partial(_where, wanted), new,
                        (*old, old.logprob, old.top_logprobs, jnp.zeros_like(kept_mass)))


def _adjust(
    logits: Float[Array, "B V"], rows: SamplingRows, mask: UInt32[Array, "B W"] | None, state: SamplingState,
    processors: Sequence[LogitsProcessor], columns: Columns = WHOLE,
) -> Float[Array, "B V"]:
    """Logits after processors, biases, penalties and masks."""

    def changed() -> Array:
        return apply_state(apply_processors(logits, rows, state, processors), rows, state, columns)

    adjusted = lax.cond(jnp.any(rows.uses_state), changed, lambda: logits)
    return adjusted if mask is None else apply_mask(adjusted, mask, columns)


def _normalizer(logits: Float[Array, "B V"], columns: Columns) -> LogNormalizer:
    return log_normalizer(logits) if columns is WHOLE else normalize(logits, columns)


def _where(condition: Bool[Array, " B"], values: Array, others: Array | float = 0) -> Array:
    return jnp.where(condition.reshape(-1, *[1] * (values.ndim - 1)), values, others)
