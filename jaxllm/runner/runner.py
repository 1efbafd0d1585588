"""The host-to-device edge: owns the device state, turns a plan into arrays, picks the compiled programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxllm.engine.constraints import constraint_masks
from jaxllm.engine.plan import StepPlan
from jaxllm.engine.request import Sequence as RequestSequence
from jaxllm.models.model import Params
from jaxllm.parallel.partition import PlacedParams
from jaxllm.runner.batch import StepBatch, build_batch, padded_lines
from jaxllm.runner.buckets import bucket_for
from jaxllm.runner.keys import VOCAB_LOGPROB_ROWS, prompt_logprob_rows
from jaxllm.runner.programs import Programs
from jaxllm.runner.stage import Stage
from jaxllm.runner.staged_weights import StagedWeights
from jaxllm.runner.weights import Weights
from jaxllm.sampling import (
    ALL_ALLOWED,
    RowTable,
    SampleOutput,
    SamplingRows,
    SamplingState,
    TokenLogprobs,
    Variant,
    VocabLogprobs,
    mask_words,
    needs_prompt_vocab_logprobs,
    needs_state,
    needs_vocab_logprobs,
    slot_row,
)


@dataclasses.dataclass(frozen=True)
class PromptLogprobs:
    """Log-probabilities of the prompt tokens at ``first .. first + count - 1`` of a sequence.

    They are lines ``offset .. offset + count - 1`` of ``values``.
    """

    sequence: RequestSequence
    first: int
    count: int
    offset: int
    values: TokenLogprobs | VocabLogprobs


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What a step produced: one line per sampler of its plan, and prompt log-probabilities where asked for.

    vocab_logprobs: by number of the sampler, a (values, line) of it: of those that need more than the short list.
    hidden: the hidden rows of the samplers, where one of them has to report its own.
    """

    sampled: SampleOutput | None
    prompt_logprobs: list[PromptLogprobs]
    vocab_logprobs: dict[int, tuple[VocabLogprobs, int]] = dataclasses.field(default_factory=dict)
    hidden: Any = None

    def fetch(self) -> StepResult:
        """Wait for the device; the same with numpy arrays."""
        sampled, values, vocab_logprobs, hidden = jax.device_get(
            (self.sampled, [part.values for part in self.prompt_logprobs], self.vocab_logprobs, self.hidden))
        prompt_logprobs = [dataclasses.replace(part, values=found)
                           for part, found in zip(self.prompt_logprobs, values, strict=True)]
        return StepResult(sampled, prompt_logprobs, vocab_logprobs, hidden)


class Runner(Stage):
    """Runs plans. Everything it owns on the device is replaced, never mutated: cache, block table, sampling state.

    params: the model's parameters, or what holds them.
    """

    def __init__(self, programs: Programs, params: Params | PlacedParams | Weights | StagedWeights) -> None:
        super().__init__(programs)
        self.weights: Weights | StagedWeights = (
            params if isinstance(params, Weights | StagedWeights) else Weights(self.partition, params))
        self.model = programs.model
        self._rows = RowTable(self.config.max_num_seqs)
        # The slots of those that ask for what few do.
        self._want_vocab_logprobs: set[int] = set()
        self._want_prompt_logprobs: set[int] = set()
        self._want_hidden: set[int] = set()
        self._processor_names = self.config.processor_names
        self._mask_words = mask_words(self.model.config.vocab_size)
        self.reset()

    def reset(self) -> None:
        """Fresh device state: an empty cache, an empty table, no sampling state."""
        super().reset()
        self.state: SamplingState | None = None
        self.newest: Any = None
        if self.here:
            self.newest = self.partition.put_small(np.zeros(self.config.max_num_seqs, np.int32))

    def sleep(self, level: int) -> None:
        """Give back the memory of the cache and the sampling state, and of the weights: at level 1 they go to host
        memory, at level 2 they are dropped."""
        if level == 1:
            self.weights.put_aside()
        else:
            self.weights.drop()
        self.drop_cache()
        self.state = None

    def wake_up(self) -> None:
        """Undo ``sleep``, with an empty cache; weights that were dropped stay away until ``weights.replace``."""
        self.reset()
        self.weights.take_back()

    def compile_all(self) -> None:
        """Compile every program, so that no step has to wait for one."""
        for key in self.programs.all_keys():
            self.programs.compile(key)

    @property
    def intact(self) -> bool:
        """Whether the device state survived: a step that fails after donating it leaves deleted arrays behind, or ones
        that no program can have computed."""
        state = self._device_state
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(state)):
            return False
        try:
            jax.block_until_ready(state)
        except Exception:
            return False
        return True

    @property
    def _device_state(self) -> Any:
        return self.cache, self.table, self.state, self.newest

    def dispatch(self, plan: StepPlan) -> StepResult:
        """Start one step; the result's arrays are on the device and may not be ready yet."""
        batch = self._prepare(plan, plan.num_tokens)
        if self._is_read(plan):
            return self._finish(plan, batch, *self._forward(batch))
        self._forward(batch, read=False)
        return StepResult(None, [])

    def _is_read(self, plan: StepPlan) -> bool:
        """Whether anything of the step's hidden rows is needed; if not, the step only writes to the cache."""
        return bool(plan.sampled or _places(self._want_prompt_logprobs, plan.slot))

    def _prepare(self, plan: StepPlan, num_tokens: int) -> StepBatch:
        """What precedes ``forward``, and its batch: of the bucket for so many tokens, the plan's or more."""
        self._admit(plan.admitted)
        self.move_blocks(plan)
        return build_batch(plan, bucket_for(self.programs.token_buckets, num_tokens), self.config.max_num_seqs,
                           self.programs.row_buckets[-1])

    def _finish(self, plan: StepPlan, batch: StepBatch, rows: Any, hidden: Any) -> StepResult:
        """What follows ``forward``, which gave these."""
        prompt_logprobs = list(self._prompt_logprobs(plan, batch.query_start, hidden))
        # Made while ``forward`` runs.
        masks = constraint_masks([sequence.constraint for sequence in plan.sampled], self._mask_words)
        vocab_logprobs = self._vocab_logprobs(plan, batch.sample_rows, hidden, masks)
        reported = rows if _places(self._want_hidden, plan.sampler_slot) else None
        return StepResult(self._sample(plan, rows, masks), prompt_logprobs, vocab_logprobs, reported)

    def _forward(self, batch: StepBatch, *, read: bool = True) -> tuple[Any, Any]:
        """The hidden rows to sample from, and all hidden rows; if they are to be read."""
        x, step, sample_rows = self.programs.begin(self.weights.outer, self.table, self.newest, batch)
        self.cache, x = self.programs.layers(self.weights.layers, x, step, self.cache, read=read)
        return self.programs.end(self.weights.outer, x, sample_rows) if read else (None, None)

    def _admit(self, admitted: Sequence[RequestSequence]) -> None:
        for sequence in admitted:
            request, slot = sequence.request, sequence.held_slot
            names = self._processor_names
            for slots, wanted in ((self._want_vocab_logprobs, needs_vocab_logprobs(request.params)),
                                  (self._want_prompt_logprobs, sequence.wants_prompt_logprobs),
                                  (self._want_hidden, request.params.reports_hidden_state)):
                (slots.add if wanted else slots.discard)(slot)
            self._rows.set_slot(
                slot, request.params, request.seed, sequence.index, sequence.num_prompt,
                processed=request.reports_processed,
                processors=sum(1 << names.index(name) for name in request.params.logits_processors or ()))
            if not needs_state(request.params):
                continue
            state = self._sampling_state()
            row = slot_row(request.params, request.prompt_token_ids, sequence.output_token_ids, request.stop_ids,
                           self.model.config.vocab_size, banned_ids=request.banned_ids, processors=names,
                           max_length=self.config.max_model_len)
            self.state = self.programs.set_sampling_slot(state, slot, row)

    def _sample(self, plan: StepPlan, hidden: Any, masks: np.ndarray | None) -> SampleOutput | None:
        if not plan.sampled:
            return None
        slots, positions = plan.sampler_slot, plan.sampler_position
        rows = self._rows.rows(slots, positions, bucket_for(self.programs.row_buckets, len(slots)))
        if masks is not None:
            masks = padded_lines(masks, rows.num_rows, ALL_ALLOWED)
        variant = Variant.MASKED if masks is not None else self._rows.variant(slots, positions)
        state = self._sampling_state() if variant >= Variant.FULL else None
        state, self.newest, sampled = self.programs.sample(
            variant, self.weights.head, state, self.newest, hidden, rows, masks)
        if state is not None:
            self.state = state
        return sampled

    def _vocab_logprobs(self, plan: StepPlan, sample_rows: Any, hidden: Any, masks: np.ndarray | None
                        ) -> dict[int, tuple[VocabLogprobs, int]]:
        wanted = _places(self._want_vocab_logprobs, plan.sampler_slot)
        found: dict[int, tuple[VocabLogprobs, int]] = {}
        for first in range(0, len(wanted), VOCAB_LOGPROB_ROWS):
            numbers = wanted[first:first + VOCAB_LOGPROB_ROWS]
            rows = self._rows.rows(plan.sampler_slot[numbers], plan.sampler_position[numbers], VOCAB_LOGPROB_ROWS)
            mask = padded_lines(masks[numbers] if masks is not None else _no_masks(self._mask_words),
                                VOCAB_LOGPROB_ROWS, ALL_ALLOWED)
            values = self._vocab_lines(hidden, np.asarray(sample_rows)[numbers], rows, mask)
            found.update({number: (values, line) for line, number in enumerate(numbers)})
        return found

    def _vocab_lines(self, hidden: Any, index: np.ndarray, rows: SamplingRows, mask: np.ndarray) -> VocabLogprobs:
        padded = np.zeros(VOCAB_LOGPROB_ROWS, np.int32)
        padded[:len(index)] = index
        return self.programs.vocab_logprobs(self.weights.head, self._sampling_state(), hidden, padded, rows, mask)

    def _sampling_state(self) -> SamplingState:
        """The sampling state, allocated when a request first needs the full sampler."""
        if self.state is None:
            self.state = self.programs.empty_state()
        return self.state

    def _prompt_logprobs(self, plan: StepPlan, query_start: Any, hidden: Any) -> Iterator[PromptLogprobs]:
        for place in _places(self._want_prompt_logprobs, plan.slot):
            sequence = plan.sequences[place]
            slot, start, count = int(plan.slot[place]), int(plan.start[place]), int(plan.count[place])
            # The hidden state at a position predicts the token after it.
            first = max(start + 1, sequence.params.prompt_logprobs_start)
            stop = min(start + count + 1, sequence.num_prompt)
            whole = needs_prompt_vocab_logprobs(sequence.params)
            size = VOCAB_LOGPROB_ROWS if whole else prompt_logprob_rows(hidden.shape[0])
            for chunk in range(first, stop, size):
                taken = min(size, stop - chunk)
                row = int(query_start[slot]) + chunk - 1 - start
                if whole:
                    neutral = self._rows.rows(_NONE, _NONE, VOCAB_LOGPROB_ROWS)
                    mask = padded_lines(_no_masks(self._mask_words), VOCAB_LOGPROB_ROWS, ALL_ALLOWED)
                    yield PromptLogprobs(sequence, chunk, taken, 0, self._vocab_lines(
                        hidden, np.arange(row, row + taken), neutral, mask))
                    continue
                shift = max(row + size - hidden.shape[0], 0)
                targets = np.zeros(size, np.int32)
                targets[shift:shift + taken] = sequence.token_ids[chunk:chunk + taken]
                values = self.programs.prompt_logprobs(self.weights.head, hidden, row - shift, targets)
                yield PromptLogprobs(sequence, chunk, taken, shift, values)


def _places(wanted: set[int], slots: np.ndarray) -> list[int]:
    return [place for place, slot in enumerate(slots.tolist()) if slot in wanted] if wanted else []


_NONE = np.zeros(0, np.int32)


def _no_masks(words: int) -> np.ndarray:
    return np.zeros((0, words), np.uint32)
