"""Device state of the requests that use penalties, biases, masks or logits processors: one row per slot."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from jaxllm.sampling_params import PROCESSOR_ARGUMENTS, SamplingParams

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
    history: prompt and output, -1 beyond; arguments: what each of the engine's logits processors is given. Both are
        ``None`` in an engine without logits processors.
    """

    counts: Int[Array, "R V"]
    flags: UInt8[Array, "R V"]
    bias: Float[Array, "R V"]
    history: Int[Array, "R L"] | None = None
    arguments: Float[Array, "R P 8"] | None = None


class SlotRow(NamedTuple):
    """One slot's row of each array of ``SamplingState``."""

    counts: np.ndarray
    flags: np.ndarray
    bias: np.ndarray
    history: np.ndarray | None = None
    arguments: np.ndarray | None = None


def init_state(num_slots: int, vocab_size: int, *, num_processors: int = 0, max_length: int = 0) -> SamplingState:
    """An empty state. Takes 9 bytes per slot and token of the vocabulary, and 4 per token of the longest sequence
    (``max_length``) if there are logits processors."""
    shape = (num_slots, vocab_size)
    arrays = (jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.uint8), jnp.zeros(shape, jnp.float32))
    if not num_processors:
        return SamplingState(*arrays)
    arguments = jnp.zeros((num_slots, num_processors, PROCESSOR_ARGUMENTS), jnp.float32)
    return SamplingState(*arrays, jnp.full((num_slots, max_length), -1, jnp.int32), arguments)


def slot_row(
    params: SamplingParams,
    prompt_ids: Sequence[int] | np.ndarray,
    output_ids: Sequence[int] | np.ndarray,
    stop_ids: Iterable[int],
    vocab_size: int,
    *,
    banned_ids: Iterable[int] = (),
    processors: Sequence[str] = (),
    max_length: int = 0,
) -> SlotRow:
    """A request's row, at admission and again after a preemption.

    stop_ids: every id that may end the output, the model's end-of-sequence ids included. Ids outside the vocabulary
    raise ``IndexError``: ``validate_token_ids`` comes first.
    banned_ids: besides ``params.banned_token_ids``.
    processors, max_length: the engine's, as in ``init_state``.
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
    banned = [*(params.banned_token_ids or ()), *banned_ids]
    if banned:
        flags[np.asarray(banned, np.int64)] |= BANNED
    if params.min_tokens > 0:
        flags[np.fromiter(stop_ids, np.int64)] |= STOP
    bias = np.zeros(vocab_size, np.float32)
    if params.logit_bias:
        values = np.fromiter(params.logit_bias.values(), np.float64)
        bias[np.fromiter(params.logit_bias.keys(), np.int64)] = np.clip(values, -_BIAS_LIMIT, _BIAS_LIMIT)
    if not processors:
        return SlotRow(counts, flags, bias)
    history = np.full(max_length, -1, np.int32)
    history[:len(prompt_ids)] = prompt_ids
    history[len(prompt_ids):len(prompt_ids) + len(output_ids)] = output_ids
    arguments = np.zeros((len(processors), PROCESSOR_ARGUMENTS), np.float32)
    for name, numbers in (params.logits_processors or {}).items():  # type: ignore[union-attr]
        arguments[processors.index(name), :len(numbers)] = numbers
    return SlotRow(counts, flags, bias, history, arguments)


def set_slot(state: SamplingState, slot: Int[Array, ""], row: SlotRow) -> SamplingState:
    """The state with one slot replaced. Pass ``slot`` as an array, and one trace serves every slot."""
    return jax.tree.map(lambda array, line: array.at[slot].set(line), state, SamplingState(*row))  # type: ignore[arg-type]


def count_tokens(
    state: SamplingState, slots: Int[Array, " B"], positions: Int[Array, " B"], token_ids: Int[Array, " B"]
) -> SamplingState:
    """The state with each row's new token counted, and put at its position. Rows of padding and rows without a token
    count nothing."""
    num_slots = state.counts.shape[0]
    slots = jnp.where(token_ids < 0, num_slots, slots)  # a negative index would wrap around
    counts = state.counts.at[slots, token_ids].add(1, mode="drop")
    history = state.history
    if history is not None:
        history = history.at[slots, positions].set(token_ids, mode="drop")
    return dataclasses.replace(state, counts=counts, history=history)
