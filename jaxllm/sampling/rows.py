"""Per-row sampling parameters: a packed array on the device, a persistent table by slot on the host."""

from __future__ import annotations

import dataclasses
import math
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from jaxllm.errors import ParameterError
from jaxllm.sampling.variant import Variant, needs_penalties, needs_state, variant_of
from jaxllm.sampling_params import MAX_SEED, SamplingParams
from pallas_kernels.sampling import DrawParameters

_TINY = 2.0**-126  # the least and the greatest float32 whose reciprocals are normal
_HUGE = 2.0**126


class _Real(IntEnum):
    """Columns of ``SamplingRows.numbers`` that hold the bits of a float32."""

    TEMPERATURE = 0
    TOP_P = 1
    LOG_MIN_P = 2
    REPETITION = 3
    FREQUENCY = 4
    PRESENCE = 5


class _Integer(IntEnum):
    """The columns after those."""

    SLOT = 6
    POSITION = 7
    SEED_HIGH = 8
    SEED_LOW = 9
    SAMPLE_INDEX = 10
    TOP_K = 11
    STOP_FROM = 12
    FLAGS = 13
    NUM_PROMPT = 14
    PROCESSORS = 15


class _Flag(IntEnum):
    """Bits of the FLAGS column."""

    STATE = 1
    PENALTIES = 2
    LOGPROBS = 4
    PROCESSED = 8
    GREEDY = 16


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SamplingRows:
    """What each row of a sample step asks for, packed into one array, as each argument of a program costs microseconds.

    Rows of padding are greedy, ask for nothing, and name the slot one past the last.
    """

    numbers: Int[Array, "B 16"]

    @property
    def num_rows(self) -> int:
        """The bucket: rows of padding included."""
        return self.numbers.shape[0]

    def _real(self, column: _Real) -> Float[Array, " B"]:
        return lax.bitcast_convert_type(self.numbers[:, column], jnp.float32)

    def _integer(self, column: _Integer) -> Int[Array, " B"]:
        return self.numbers[:, column]

    def _word(self, column: _Integer) -> UInt32[Array, " B"]:
        return lax.bitcast_convert_type(self.numbers[:, column], jnp.uint32)

    def _flag(self, flag: _Flag) -> Bool[Array, " B"]:
        return (self.numbers[:, _Integer.FLAGS] & flag) != 0

    @property
    def temperature(self) -> Float[Array, " B"]:
        """Positive; 1 where it was given as 0."""
        return self._real(_Real.TEMPERATURE)

    @property
    def repetition_penalty(self) -> Float[Array, " B"]:
        """Positive; 1 is off."""
        return self._real(_Real.REPETITION)

    @property
    def frequency_penalty(self) -> Float[Array, " B"]:
        """0 is off."""
        return self._real(_Real.FREQUENCY)

    @property
    def presence_penalty(self) -> Float[Array, " B"]:
        """0 is off."""
        return self._real(_Real.PRESENCE)

    @property
    def slot(self) -> Int[Array, " B"]:
        """The request's engine slot; the number of slots for padding."""
        return self._integer(_Integer.SLOT)

    @property
    def position(self) -> Int[Array, " B"]:
        """Absolute position of the token being generated."""
        return self._integer(_Integer.POSITION)

    @property
    def draws(self) -> DrawParameters:
        """How the rows' tokens are drawn."""
        return DrawParameters(
            temperature=self.temperature,
            top_p=self._real(_Real.TOP_P),
            log_min_p=self._real(_Real.LOG_MIN_P),
            top_k=self._integer(_Integer.TOP_K),
            greedy=self._flag(_Flag.GREEDY),
            seed_high=self._word(_Integer.SEED_HIGH),
            seed_low=self._word(_Integer.SEED_LOW),
            sample_index=self._word(_Integer.SAMPLE_INDEX),
            position=self._word(_Integer.POSITION),
        )

    @property
    def stops_masked(self) -> Bool[Array, " B"]:
        """Whether the output is still shorter than min_tokens."""
        return self.position < self._integer(_Integer.STOP_FROM)

    @property
    def uses_state(self) -> Bool[Array, " B"]:
        """Whether the row's slot of ``SamplingState`` is its own; a row that does not use it must not see it."""
        return self._flag(_Flag.STATE)

    @property
    def uses_penalties(self) -> Bool[Array, " B"]:
        """Whether any penalty is on."""
        return self._flag(_Flag.PENALTIES)

    @property
    def wants_logprobs(self) -> Bool[Array, " B"]:
        """Whether log-probabilities are reported."""
        return self._flag(_Flag.LOGPROBS)

    @property
    def wants_processed(self) -> Bool[Array, " B"]:
        """Whether those reported are of the distribution drawn from, not of the raw logits."""
        return self._flag(_Flag.PROCESSED)

    @property
    def num_prompt(self) -> Int[Array, " B"]:
        """Tokens of the request's prompt."""
        return self._integer(_Integer.NUM_PROMPT)

    @property
    def processors(self) -> Int[Array, " B"]:
        """Bit i says that the engine's logits processor number i applies."""
        return self._integer(_Integer.PROCESSORS)


class RowTable:
    """The sampling parameters of the requests in the engine's slots, as numpy arrays filled once at admission.

    ``rows`` then builds a step's ``SamplingRows`` by indexing, without a Python loop over requests.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._numbers = np.zeros((num_slots + 1, len(_Real) + len(_Integer)), np.int32)
        self._reals = self._numbers.view(np.float32)
        self._variant = np.zeros(num_slots + 1, np.int8)
        self._demanding: set[int] = set()  # slots of requests that ask for more than GREEDY
        self._reals[:, [_Real.TEMPERATURE, _Real.TOP_P, _Real.REPETITION]] = 1.0
        self._reals[:, _Real.LOG_MIN_P] = -np.inf
        self._numbers[:, _Integer.SLOT] = np.arange(num_slots + 1)
        self._numbers[:, _Integer.FLAGS] = _Flag.GREEDY

    def set_slot(self, slot: int, params: SamplingParams, seed: int, sample_index: int, prompt_length: int, *,
                 processed: bool = False, processors: int = 0) -> None:
        """Fill a slot for one sample of a request.

        seed: what the noise starts from, in [0, 2**63); the caller draws one where the request has none.
        prompt_length: of the request's own prompt, also when it comes back after a preemption: min_tokens counts
            from there.
        processed: report log-probabilities of the distribution drawn from.
        processors: bit i for the engine's logits processor number i.
        """
        if not 0 <= slot < self.num_slots:
            raise ParameterError("slot", slot, f"0 to {self.num_slots - 1}")
        if not 0 <= seed <= MAX_SEED:
            raise ParameterError("seed", seed, f"0 to {MAX_SEED}")
        # Greedy rows draw without filters; those whose temperature is not 0 report what their filters keep.
        filters = params.temperature > 0
        reals = self._reals[slot]
        # float32 holds neither 1e-320 nor 1e300, nor normal reciprocals of its largest (XLA may multiply by them): the
        # nearest that are safe have the same effect.
        reals[_Real.TEMPERATURE] = _clamp(params.temperature) if params.temperature > 0 else 1.0
        reals[_Real.TOP_P] = _clamp(params.top_p) if filters else 1.0
        reals[_Real.LOG_MIN_P] = math.log(params.min_p) if filters and params.min_p > 0 else -math.inf
        reals[_Real.REPETITION] = _clamp(params.repetition_penalty)
        reals[_Real.FREQUENCY] = params.frequency_penalty
        reals[_Real.PRESENCE] = params.presence_penalty
        integers = self._numbers[slot]
        integers[_Integer.SEED_HIGH] = _signed(seed >> 32)
        integers[_Integer.SEED_LOW] = _signed(seed & 0xFFFFFFFF)
        integers[_Integer.SAMPLE_INDEX] = sample_index
        integers[_Integer.TOP_K] = min(params.top_k, 2**31 - 1) if filters and params.top_k > 0 else 0
        integers[_Integer.STOP_FROM] = min(prompt_length + params.min_tokens, 2**31 - 1) if params.min_tokens else 0
        integers[_Integer.FLAGS] = (
            _Flag.STATE * needs_state(params)
            + _Flag.PENALTIES * needs_penalties(params)
            + _Flag.LOGPROBS * params.wants_logprobs
            + _Flag.PROCESSED * processed
            + _Flag.GREEDY * params.greedy
        )
        integers[_Integer.NUM_PROMPT] = prompt_length
        integers[_Integer.PROCESSORS] = _signed(processors)
        # Once min_tokens is reached, a request that asked for nothing else of FULL no longer needs it.
        self._variant[slot] = variant_of(params.replace(min_tokens=0))
        (self._demanding.discard if variant_of(params) == Variant.GREEDY else self._demanding.add)(slot)

    def rows(self, slots: np.ndarray, positions: np.ndarray, bucket: int) -> SamplingRows:
        """The rows of a step, padded to ``bucket``: ``positions[i]`` is where slot ``slots[i]``'s new token goes.

        The array is new at every call, so that the device may read it while the next step is built.
        """
        used = len(slots)
        if used > bucket:
            raise ParameterError("bucket", bucket, f"at least the number of rows, which is {used}")
        index = slots
        if used < bucket:
            index = np.full(bucket, self.num_slots)
            index[:used] = slots
        numbers: Any = self._numbers[index]
        numbers[:used, _Integer.POSITION] = positions
        return SamplingRows(numbers)

    def variant(self, slots: np.ndarray, positions: np.ndarray) -> Variant:
        """The variant that these slots need at these positions."""
        if not self._demanding.intersection(slots.tolist()):
            return Variant.GREEDY
        if (positions < self._numbers[slots, _Integer.STOP_FROM]).any():
            return Variant.FULL
        return Variant(int(self._variant[slots].max()))


def _clamp(value: float) -> float:
    return min(max(value, _TINY), _HUGE)


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word
