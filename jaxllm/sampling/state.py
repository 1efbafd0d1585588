"""Device state of the requests that use penalties, biases or masks: one row of the vocabulary per slot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from jaxllm.sampling_params import SamplingParams

IN_PROMPT = 1
BANNED = 2
STOP = 4

_BIAS_LIMIT = 1e38  # a finite logit plus a bias stays finite in float32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingState:
    """Token history and masks by slot. A value: functions return a new one; donate it to the step.

    counts: how often each token occurs in the slot's output.
    flags: bit 0 the token occurs in the prompt; bit 1 it is banned; bit 2 it ends the output, and so is masked while
        the output is shorter than min_tokens.
    bias: added to the logits.
    """

    counts: Int[Array, "R V"]
    flags: UInt8[Array, "R V"]
    bias: Float[Array, "R V"]


def init_state(num_slots: int, vocab_size: int) -> SamplingState:
    """An empty state. Takes 9 bytes per slot and token."""
    shape = (num_slots, vocab_size)
    return SamplingState(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.uint8), jnp.zeros(shape, jnp.float32))


def slot_row(
    params: SamplingParams,
    prompt_ids: Sequence[int] | np.ndarray,
    output_ids: Sequence[int] | np.ndarray,
    stop_ids: Iterable[int],
    vocab_size: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A request's (counts i32[V], flags u8[V], bias f32[V]), at admission and again after a preemption.

    stop_ids: every id that may end the output, the model's end-of-sequence ids included. Ids outside the vocabulary
    raise ``IndexError``: ``validate_token_ids`` comes first.
    """
    counts = np.bincount(np.asarray(output_ids, np.int64), minlength=vocab_size).astype(np.int32)
    if len(counts) > vocab_size:
        raise IndexError(f"an output id of {len(counts) - 1} is outside the vocabulary of {vocab_size}")
    flags = np.zeros(vocab_size, np.uint8)
    flags[np.asarray(prompt_ids, np.int64)] |= IN_PROMPT
    if params.allowed_token_ids is not None:
        outside = np.ones(vocab_size, bool)
        outside[np.asarray(params.allowed_token_ids, np.int64)] = False
        flags[outside] |= BANNED
    if params.banned_token_ids:
        flags[np.asarray(params.banned_token_ids, np.int64)] |= BANNED
    if params.min_tokens > 0:
        flags[np.fromiter(stop_ids, np.int64)] |= STOP
    bias = np.zeros(vocab_size, np.float32)
    if params.logit_bias:
        values = np.fromiter(params.logit_bias.values(), np.float64)
        bias[np.fromiter(params.logit_bias.keys(), np.int64)] = np.clip(values, -_BIAS_LIMIT, _BIAS_LIMIT)
    return counts, flags, bias


def set_slot(
    state: SamplingState,
    slot: Int[Array, ""],
    counts: Int[Array, " V"],
    flags: UInt8[Array, " V"],
    bias: Float[Array, " V"],
) -> SamplingState:
    """The state with one slot replaced. Pass ``slot`` as an array, and one trace serves every slot."""
    return SamplingState(
        state.counts.at[slot].set(counts), state.flags.at[slot].set(flags), state.bias.at[slot].set(bias)
    )


def count_tokens(state: SamplingState, slots: Int[Array, " B"], token_ids: Int[Array, " B"]) -> SamplingState:
    """The state with each row's new token counted. Rows of padding and rows without a token count nothing."""
    num_slots = state.counts.shape[0]
    slots = jnp.where(token_ids < 0, num_slots, slots)  # a negative index would wrap around
    counts = state.counts.at[slots, token_ids].add(1, mode="drop")
    return dataclasses.replace(state, counts=counts)
