"""``Request``, what a user asked, and ``Sequence``, one sample of it, which is what gets scheduled."""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from jaxllm.engine.constraints import Constraints
from jaxllm.engine.integrity import IntegrityError
from jaxllm.engine.prefix_hash import HashChain
from jaxllm.errors import ParameterError
from jaxllm.outputs import FinishReason, OutputError, RequestMetrics
from jaxllm.sampling_params import LogprobsMode, SamplingParams

if TYPE_CHECKING:
    from jaxllm.engine.beam_group import BeamGroup
    from jaxllm.speculative.ngram import PromptIndex
    from jaxllm.speculative.speculator import Lookahead

_FIRST_OUTPUT_CAPACITY = 64


class SequenceStatus(enum.Enum):
    """Where a sequence is in its life.

    Only sequences of a beam search rest: they hold nothing and want nothing. One that is ending holds nothing either:
    it waits for the outcome of a step that runs.
    """

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    RESTING = "resting"
    ENDING = "ending"
    FINISHED = "finished"


class Request:
    """One prompt with its sampling parameters, and the ``n`` sequences that answer it.

    prompt_token_ids: i32[prompt length], never written to.
    eos_token_ids: every end-of-sequence id of the model, whether or not the request honours them.
    stop_ids: the ids that end this request's samples, which are masked before ``min_tokens``.
    max_tokens: the most tokens to generate, at most the room that the prompt leaves in ``max_model_len``.
    seed: the request's, else ``default_seed``, else one drawn from the operating system.
    logprobs_mode: of the output's log-probabilities. constraints: what the host sees to, besides the device.
    arrival: its place in the order of arrival, set by the scheduler.
    forked: whether samples 1 to n - 1 have left the care of sample 0.
    beams: the state of the search that the request is, ``None`` if it samples.
    prompt_index: the prompt's n-grams, once they are looked up.

    Raises ``ParameterError`` for a prompt that is empty, too long or holds ids outside the vocabulary.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Iterable[int] | np.ndarray,
        params: SamplingParams,
        *,
        max_model_len: int,
        prompt: str | None = None,
        eos_token_ids: Iterable[int] = (),
        vocab_size: int | None = None,
        arrival_time: float | None = None,
        default_seed: int | None = None,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        constraints: Constraints | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.prompt_token_ids = prompt_array(prompt_token_ids, max_model_len=max_model_len, vocab_size=vocab_size)
        self.params = params
        self.eos_token_ids = frozenset(eos_token_ids)
        honoured = frozenset() if params.ignore_eos else self.eos_token_ids
        self.stop_ids = honoured | frozenset(params.stop_token_ids or ())
        room = max_model_len - len(self.prompt_token_ids)
        self.max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        drawn = secrets.randbits(63) if default_seed is None else default_seed
        self.seed = drawn if params.seed is None else params.seed
        self.logprobs_mode = logprobs_mode
        self.constraints = constraints
        self.arrival = 0
        self.forked = False
        self.beams: BeamGroup | None = None
        self.prompt_index: PromptIndex | None = None
        self.error: OutputError | None = None
        self.metrics = RequestMetrics(time.perf_counter() if arrival_time is None else arrival_time)
        self.sequences = [Sequence(self, index) for index in range(params.n)]

    @property
    def reports_processed(self) -> bool:
        """Whether the output's log-probabilities are of the distribution drawn from."""
        return self.params.wants_logprobs and self.logprobs_mode == "processed_logprobs"

    @property
    def banned_ids(self) -> tuple[int, ...]:
        """Tokens never to be chosen, besides those that the parameters name."""
        return () if self.constraints is None else self.constraints.banned_ids

    @property
    def finished(self) -> bool:
        """Whether every sample is finished."""
        return all(sequence.finished for sequence in self.sequences)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens whose keys and values were found in the prefix cache when the prompt was first run."""
        return self.sequences[0].num_cached_tokens

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, prompt of {len(self.prompt_token_ids)} tokens, n={self.params.n})"


class Sequence:
    """One sample of a request: its tokens, and how far their keys and values are computed.

    num_tokens: prompt and output so far. num_pending: tokens besides that planned steps sample, whose outcome is not
        known yet. newest_plan: the number of the last plan that samples one. num_computed: the tokens whose keys and
        values are in the cache once the planned steps have run.
    num_writable: up to where its blocks are known to be its own to write, kept by the block manager.
    max_length: the most tokens that it may have, prompt included.
    slot: its row in the device's block table and sampling state while running, else ``None``.
    order: its place under the scheduling policy, smaller first; unique.
    num_cached_tokens: tokens found in the prefix cache when it was first admitted.
    hash_chain: its block hashes, kept by the block manager across preemptions.
    constraint: what the host forbids it next, if anything; kept across preemptions.
    lookahead: how it is guessed to go on, once that is asked; kept across preemptions. is_guessing: whether a planned
        step computes such tokens, so that more than the one pending may come of it.
    """

    __slots__ = (
        "_buffer", "constraint", "finish_reason", "hash_chain", "index", "is_guessing", "lookahead",
        "max_length", "newest_plan", "num_cached_tokens", "num_computed", "num_pending", "num_preemptions",
        "num_prompt", "num_tokens", "num_writable", "order", "request", "slot", "status", "stop_reason",
    )  # fmt: skip

    def __init__(self, request: Request, index: int) -> None:
        self.request = request
        self.index = index
        # The prompt's array is shared by all samples until the first token is appended.
        self._buffer = request.prompt_token_ids
        self.num_prompt = len(self._buffer)
        self.num_tokens = self.num_prompt
        self.max_length = self.num_prompt + request.max_tokens
        self.num_pending = 0
        self.newest_plan = 0
        self.num_computed = 0
        self.num_writable = 0
        self.slot: int | None = None
        self.order: tuple[int, int, int] = (0, 0, index)
        self.status = SequenceStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.hash_chain: HashChain | None = None
        self.constraint = None if request.constraints is None else request.constraints.start()
        self.lookahead: Lookahead | None = None
        self.is_guessing = False

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
        return self.request.params

    @property
    def num_output(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt

    @property
    def target(self) -> int:
        """How many of its tokens can be computed as soon as the planned steps have run."""
        return self.num_tokens + self.num_pending

    @property
    def ends_with_pending(self) -> bool:
        """Whether it ends with the token that is pending, whichever it is."""
        return self.num_tokens + self.num_pending >= self.max_length and self.request.beams is None

    @property
    def must_wait(self) -> bool:
        """Whether the host has to know the pending token before the one after it can be sampled."""
        return self.num_pending > 0 and (
            self.is_guessing or self.constraint is not None or self.request.beams is not None)

    @property
    def token_ids(self) -> np.ndarray:
        """i32[num_tokens], prompt and output: a view, valid until the next append."""
        return self._buffer[: self.num_tokens]

    @property
    def output_token_ids(self) -> np.ndarray:
        """i32[num_output]: a view, valid until the next append."""
        return self._buffer[self.num_prompt : self.num_tokens]

    @property
    def held_slot(self) -> int:
        """The slot of a sequence that must have one."""
        if self.slot is None:
            raise IntegrityError(f"{self} has no slot")
        return self.slot

    @property
    def last_token(self) -> int:
        """The newest token."""
        return int(self._buffer[self.num_tokens - 1])

    @property
    def finished(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.status is SequenceStatus.FINISHED

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the prompt's log-probabilities are still to be reported from this sequence's forward passes.

        Only sample 0 reports them, and has done so once it has generated a token.
        """
        return self.index == 0 and self.params.prompt_logprobs is not None and self.num_tokens == self.num_prompt

    @property
    def num_reusable(self) -> int:
        """How many of its first tokens need not be computed if the prefix cache has them.

        Those before the last, which is sampled from; and while the prompt's log-probabilities are wanted, those before
        the first position that gives one.
        """
        if not self.wants_prompt_logprobs:
            return self.num_tokens - 1
        return max(min(self.params.prompt_logprobs_start, self.num_tokens) - 1, 0)

    def take_tokens(self, other: Sequence) -> None:
        """Become equal in tokens to another sample of the request."""
        shared = other._buffer is self.request.prompt_token_ids
        self._buffer = other._buffer if shared else other._buffer.copy()
        self.num_tokens = other.num_tokens

    def append(self, token: int) -> None:
        """Add a generated token, in amortized constant time."""
        if self.num_tokens == len(self._buffer):
            output = max(_FIRST_OUTPUT_CAPACITY, 2 * self.num_output)
            grown = np.empty(max(self.num_prompt + min(output, self.request.max_tokens), self.num_tokens + 1), np.int32)
            grown[: self.num_tokens] = self._buffer
            self._buffer = grown
        self._buffer[self.num_tokens] = token
        self.num_tokens += 1

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request.request_id!r}[{self.index}], {self.status.value}, slot={self.slot}, "
            f"computed {self.num_computed} of {self.num_tokens})"
        )


def prompt_array(
    token_ids: Iterable[int] | np.ndarray, *, max_model_len: int, vocab_size: int | None = None
) -> np.ndarray:
    """The prompt as a read-only i32 array, checked: not empty, room for one token, ids within the vocabulary."""
    ids = token_ids if isinstance(token_ids, np.ndarray) else list(token_ids)
    allowed = "integers >= 0" + (f" and < {vocab_size}, the vocabulary's size" if vocab_size is not None else "")
    try:
        array = np.asarray(ids)
    except ValueError:
        raise ParameterError("prompt_token_ids", ids, f"a flat list of {allowed}") from None
    if array.size == 0:
        raise ParameterError("prompt", ids if isinstance(ids, list) else [], "at least one token")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ParameterError("prompt_token_ids", ids, f"a flat list of {allowed}")
    limit = 2**31 if vocab_size is None else vocab_size
    wrong = array[(array < 0) | (array >= limit)]
    if wrong.size:
        raise ParameterError("prompt_token_ids", int(wrong[0]), f"token ids are {allowed}")
    if array.size >= max_model_len:
        allowed = f"at most {max_model_len - 1} tokens, one fewer than max_model_len={max_model_len}"
        raise ParameterError("prompt length", array.size, allowed)
    result = array.astype(np.int32)
    result.flags.writeable = False
    return result
