"""The sampler: from a step's logits to its tokens, a pure function with three forms.

Order of operations, as in vLLM (V1): log-probabilities are of the raw logits; then bias and masks (allowed, banned,
min_tokens), penalties (repetition, frequency, presence), temperature, min-p, top-k, top-p within what those left, and
the draw.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxllm.sampling.filters import draw_filtered, scale
from jaxllm.sampling.logprobs import TokenLogprobs, token_logprobs
from jaxllm.sampling.noise import gumbel_rows
from jaxllm.sampling.penalties import apply_state
from jaxllm.sampling.reductions import argmax, holds_nan_or_inf
from jaxllm.sampling.rows import SamplingRows
from jaxllm.sampling.state import SamplingState, count_tokens
from jaxllm.sampling.tiles import map_row_tiles
from jaxllm.sampling.variant import Variant

NO_TOKEN = -1
"""The token id of a row that has none: its logits hold NaN or +inf, or its masks leave nothing to choose."""

MAX_LOGPROBS = 20
"""The default number of most likely tokens that a step can report."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SampleOutput:
    """A step's tokens, ``NO_TOKEN`` where a row has none. The rest is ``None`` but in the FULL variant.

    logprob, rank, top_ids, top_logprobs: as in ``token_logprobs``; zeros in rows that did not ask.
    """

    token_ids: Int[Array, " B"]
    logprob: Float[Array, " B"] | None = None
    rank: Int[Array, " B"] | None = None
    top_ids: Int[Array, "B K"] | None = None
    top_logprobs: Float[Array, "B K"] | None = None


def sample(
    logits: Float[Array, "B V"],
    rows: SamplingRows,
    state: SamplingState | None,
    variant: Variant,
    *,
    max_logprobs: int = MAX_LOGPROBS,
) -> tuple[SamplingState | None, SampleOutput]:
    """Choose one token per row; the state comes back with the tokens counted, in the FULL variant.

    logits: float32; -inf for ids that must never be chosen, such as a padded vocabulary's.
    variant, max_logprobs: static.
    A row's results depend on its own logits, parameters and state alone, bit for bit.
    """
    if variant == Variant.GREEDY:
        return state, SampleOutput(_checked(logits, *argmax(logits)))
    if variant == Variant.SAMPLED:
        return state, SampleOutput(map_row_tiles(_draw, logits, rows))
    if state is None:
        raise ValueError("state=None is not allowed: the FULL variant needs a SamplingState")
    output = map_row_tiles(functools.partial(_draw_full, state=state, max_logprobs=max_logprobs), logits, rows)
    return count_tokens(state, rows.slot, output.token_ids), output


def _draw(logits: Float[Array, "B V"], rows: SamplingRows) -> Int[Array, " B"]:
    return _checked(logits, *argmax(_scores(logits, rows)))


def _draw_full(
    logits: Float[Array, "B V"], rows: SamplingRows, *, state: SamplingState, max_logprobs: int
) -> SampleOutput:
    adjusted = lax.cond(jnp.any(rows.uses_state), lambda: apply_state(logits, rows, state), lambda: logits)
    scores = _scores(adjusted, rows)
    drawn = lax.cond(
        jnp.any(rows.uses_filter), lambda: draw_filtered(adjusted, scores, rows), lambda: argmax(scores)
    )
    token_ids = _checked(logits, *drawn)
    nothing = _no_logprobs(logits, max_logprobs)
    reported = lax.cond(
        jnp.any(rows.wants_logprobs), lambda: token_logprobs(logits, token_ids, max_logprobs), lambda: nothing
    )
    logprob, rank, top_ids, top_logprobs = reported
    wanted = rows.wants_logprobs
    return SampleOutput(
        token_ids,
        jnp.where(wanted, logprob, 0),
        jnp.where(wanted, rank, 0),
        jnp.where(wanted[:, None], top_ids, 0),
        jnp.where(wanted[:, None], top_logprobs, 0),
    )


def _scores(logits: Float[Array, "B V"], rows: SamplingRows) -> Float[Array, "B V"]:
    """What the draw takes the argmax of: logits in greedy rows, else scaled logits plus noise (Gumbel-max)."""
    noise = gumbel_rows(*rows.noise_words, logits.shape[-1])
    scores = jnp.where((rows.temperature == 0)[:, None], logits, scale(logits, rows) + noise)
    # Apart from what consumes them, so that every variant computes the same bits.
    return lax.optimization_barrier(scores)


def _checked(
    logits: Float[Array, "B V"], token_ids: Int[Array, " B"], best: Float[Array, " B"]
) -> Int[Array, " B"]:
    return jnp.where(jnp.isfinite(best) & ~holds_nan_or_inf(logits), token_ids, NO_TOKEN)


def _no_logprobs(logits: Float[Array, "B V"], max_logprobs: int) -> TokenLogprobs:
    rows, vocab_size = logits.shape
    top = (rows, min(max_logprobs, vocab_size))
    return TokenLogprobs(
        jnp.zeros(rows, jnp.float32), jnp.zeros(rows, jnp.int32), jnp.zeros(top, jnp.int32), jnp.zeros(top, jnp.float32)
    )
