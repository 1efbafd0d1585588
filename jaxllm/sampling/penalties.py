"""Biases, penalties and masks: what a request's history and wishes do to its logits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from jaxllm.sampling.rows import SamplingRows
from jaxllm.sampling.state import BANNED, IN_PROMPT, STOP, SamplingState
from pallas_kernels.sampling.columns import WHOLE, Columns

_LARGEST = jnp.finfo(jnp.float32).max


def apply_state(logits: Float[Array, "B V"], rows: SamplingRows, state: SamplingState, columns: Columns = WHOLE
                ) -> Float[Array, "B V"]:
    """Logits after bias, penalties and masks, in vLLM's order; unchanged for rows that do not use the state.

    Bias first, then the repetition penalty over prompt and output (CTRL: divides positive logits, multiplies negative
    ones), frequency and presence over the output. Banned tokens, and stop tokens while the output is shorter than
    min_tokens, become -inf; those commute with the rest. Nothing finite overflows to an infinity.
    """
    with jax.named_scope("apply_state"):
        biased = logits + _of_slots(state.bias, rows, logits, columns)
        penalized = lax.cond(
            jnp.any(rows.uses_penalties), lambda x: _penalize(x, rows, state, columns), lambda x: x, biased
        )
        flags = _of_slots(state.flags, rows, logits, columns)
        hidden = jnp.where(rows.stops_masked, BANNED | STOP, BANNED).astype(jnp.uint8)
        bounded = jnp.where(jnp.isfinite(logits), jnp.clip(penalized, -_LARGEST, _LARGEST), logits)
        masked = jnp.where((flags & hidden[:, None]) != 0, -jnp.inf, bounded)
        return jnp.where(rows.uses_state[:, None], masked, logits)


def _of_slots(array: Shaped[Array, "R V"], rows: SamplingRows, logits: Float[Array, "B V"], columns: Columns
              ) -> Shaped[Array, "B V"]:
    """Each row's slot of an array of the state, the columns that the logits have."""
    # Rows of padding name a slot past the last: whatever they read is dropped, as they do not use the state.
    return columns.own(array.at[rows.slot].get(mode="clip"), logits)


def _penalize(logits: Float[Array, "B V"], rows: SamplingRows, state: SamplingState, columns: Columns
              ) -> Float[Array, "B V"]:
    counts = _of_slots(state.counts, rows, logits, columns)
    flags = _of_slots(state.flags, rows, logits, columns)
    repetition = rows.repetition_penalty[:, None]
    seen = (counts > 0) | ((flags & IN_PROMPT) != 0)
    repeated = jnp.where(logits > 0, logits / repetition, logits * repetition)
    penalized = jnp.where(seen, repeated, logits)
    penalized = penalized - rows.frequency_penalty[:, None] * counts
    penalized = penalized - jnp.where(counts > 0, rows.presence_penalty[:, None], 0)
    return jnp.where(rows.uses_penalties[:, None], penalized, logits)
