"""The sampler: from a step's logits to its tokens, a pure function with three forms.

Order of operations, as in vLLM (V1): log-probabilities are of the raw logits; then bias and masks (allowed, banned,
min_tokens), penalties (repetition, frequency, presence), temperature, min-p, top-k, top-p within what those left, and
the draw.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jaxllm.sampling.filters import draw_top_p, keep_top_k_min_p
from jaxllm.sampling.logprobs import TokenLogprobs, token_logprobs
from jaxllm.sampling.noise import gumbel_rows
from jaxllm.sampling.penalties import apply_state
from jaxllm.sampling.reductions import argmax
from jaxllm.sampling.rows import SamplingRows
from jaxllm.sampling.state import SamplingState, count_tokens
from jaxllm.sampling.variant import Variant

NO_TOKEN = -1
"""The token id of a row that has none: its logits hold NaN or +inf, or its masks leave nothing to choose."""

MAX_LOGPROBS = 20
"""The default number of most likely tokens that a step can report."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SampleOutput:
    """A step's tokens, ``NO_TOKEN`` where a row has none. The rest is ``None`` but in the FULL variant.

    logprob, rank, top_ids, top_logprobs: as in ``token_logprobs``; zeros when no row wants them.
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
        return state, SampleOutput(_checked(*argmax(logits)))
    if variant == Variant.SAMPLED:
        _, scores = _scores(logits, rows)
        return state, SampleOutput(_checked(*argmax(scores)))
    if state is None:
        raise ValueError("state=None is not allowed: the FULL variant needs a SamplingState")
    raw = jnp.where(logits == 0, 0.0, logits)  # -0.0 and 0.0 tie
    adjusted = lax.cond(
        jnp.any(rows.uses_state), lambda x: apply_state(x, rows, state), lambda x: x, raw
    )
    token_ids = _draw_filtered(adjusted, rows)
    reported = lax.cond(
        jnp.any(rows.wants_logprobs),
        lambda: token_logprobs(raw, token_ids, max_logprobs),
        lambda: _no_logprobs(raw, max_logprobs),
    )
    return count_tokens(state, rows.slot, token_ids), SampleOutput(token_ids, *reported)


def _scores(logits: Float[Array, "B V"], rows: SamplingRows) -> tuple[Float[Array, "B V"], Float[Array, "B V"]]:
    """(scaled logits, scores): a row's token is the argmax of its scores.

    Scaled logits are ``(logits - max) / temperature``: with the largest at 0, no temperature overflows. Scores add
    the noise (Gumbel-max), or in greedy rows are the logits themselves.
    """
    greedy = (rows.temperature == 0)[:, None]
    best = jnp.max(logits, axis=-1, keepdims=True)
    scaled = (logits - best) / jnp.where(greedy, 1, rows.temperature[:, None])
    scores = jnp.where(greedy, logits, scaled + gumbel_rows(*rows.noise_words, logits.shape[-1]))
    # Apart from what consumes them, so that every variant computes the same bits.
    return lax.optimization_barrier((scaled, scores))


def _draw_filtered(logits: Float[Array, "B V"], rows: SamplingRows) -> Int[Array, " B"]:
    scaled, scores = _scores(logits, rows)
    narrow = (rows.top_k > 0) | (rows.log_min_p > -jnp.inf)
    scores = lax.cond(
        jnp.any(narrow),
        lambda: jnp.where(keep_top_k_min_p(logits, scaled, rows), scores, -jnp.inf),
        lambda: scores,
    )
    token_ids, best = lax.cond(
        jnp.any(rows.top_p < 1),
        lambda: draw_top_p(logits, scaled, scores, rows.top_p),
        lambda: argmax(scores),
    )
    return _checked(token_ids, best)


def _checked(token_ids: Int[Array, " B"], best: Float[Array, " B"]) -> Int[Array, " B"]:
    return jnp.where(jnp.isfinite(best), token_ids, NO_TOKEN)


def _no_logprobs(logits: Float[Array, "B V"], max_logprobs: int) -> TokenLogprobs:
    rows, vocab_size = logits.shape
    top = (rows, min(max_logprobs, vocab_size))
    return TokenLogprobs(
        jnp.zeros(rows, jnp.float32), jnp.zeros(rows, jnp.int32), jnp.zeros(top, jnp.int32), jnp.zeros(top, jnp.float32)
    )
