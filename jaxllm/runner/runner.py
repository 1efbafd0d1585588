"""The host-to-device edge: owns the device state, turns a plan into arrays, picks the compiled programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.engine.plan import StepPlan
from jaxllm.engine.request import Sequence as RequestSequence
from jaxllm.kv_cache import allocate_pool, block_table
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model, Params
from jaxllm.runner.batch import build_batch, padded_lines
from jaxllm.runner.buckets import bucket_for
from jaxllm.runner.programs import BLOCK_COPIES, TABLE_CHANGES, Programs, prompt_logprob_rows
from jaxllm.sampling import (
    RowTable,
    SampleOutput,
    SamplingState,
    TokenLogprobs,
    Variant,
    init_state,
    slot_row,
    variant_of,
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
    values: TokenLogprobs


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What a step produced: one line per sampler of its plan, and prompt log-probabilities where asked for."""

    sampled: SampleOutput | None
    prompt_logprobs: list[PromptLogprobs]

    def fetch(self) -> StepResult:
        """Wait for the device; the same with numpy arrays."""
        return StepResult(
            jax.device_get(self.sampled),
            [dataclasses.replace(part, values=jax.device_get(part.values)) for part in self.prompt_logprobs],
        )


class Runner:
    """Runs plans. Everything it owns on the device is replaced, never mutated: cache, block table, sampling state."""

    def __init__(self, model: Model, params: Params, spec: KVSpec, config: EngineConfig) -> None:
        self.model = model
        self.params = params
        self.head = model.head_parameters(params)
        self.spec = spec
        self.config = config
        self.programs = Programs(model, config)
        self._rows = RowTable(config.max_num_seqs)
        self._variants = np.zeros(config.max_num_seqs, np.int32)
        self.reset()

    def reset(self) -> None:
        """Fresh device state: an empty cache, an empty table, no sampling state."""
        self.cache = allocate_pool(self.spec, self.config.num_blocks, self.config.block_size)
        self.table = block_table.empty(
            len(self.spec.groups), self.config.max_num_seqs, self.config.blocks_per_sequence)
        self.state: SamplingState | None = None

    @property
    def intact(self) -> bool:
        """Whether the device state survived: a step that fails after donating it leaves deleted arrays behind."""
        return not any(leaf.is_deleted() for leaf in jax.tree.leaves((self.cache, self.table, self.state)))

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step and wait for its result."""
        return self.dispatch(plan).fetch()

    def dispatch(self, plan: StepPlan) -> StepResult:
        """Start one step; the result's arrays are on the device and may not be ready yet."""
        self._admit(plan.admitted)
        for pairs in _chunks(plan.block_copies, BLOCK_COPIES, 0):
            self.cache = self.programs.copy_blocks(self.cache, pairs)
        for changes in _chunks(plan.table_updates, TABLE_CHANGES, -1):
            self.table = self.programs.update_table(self.table, changes)
        batch = build_batch(plan, bucket_for(self.programs.token_buckets, plan.num_tokens), self.config.max_num_seqs)
        self.cache, rows, hidden = self.programs.forward(self.params, self.cache, self.table, batch)
        prompt_logprobs = list(self._prompt_logprobs(plan, batch.query_start, hidden))
        return StepResult(self._sample(plan, rows), prompt_logprobs)

    def _admit(self, admitted: Sequence[RequestSequence]) -> None:
        for sequence in admitted:
            request, slot = sequence.request, sequence.slot
            variant = variant_of(request.params)
            self._variants[slot] = variant
            self._rows.set_slot(slot, request.params, request.seed, sequence.index, sequence.num_prompt)
            if variant != Variant.FULL:
                continue
            if self.state is None:
                self.state = init_state(self.config.max_num_seqs, self.model.config.vocab_size)
            tokens = sequence.tokens
            row = slot_row(request.params, tokens[:sequence.num_prompt], tokens[sequence.num_prompt:],
                           request.stop_ids, self.model.config.vocab_size)
            self.state = self.programs.set_sampling_slot(self.state, np.int32(slot), row)

    def _sample(self, plan: StepPlan, hidden: Any) -> SampleOutput | None:
        if not plan.samplers:
            return None
        slots = np.fromiter((sampler.slot for sampler in plan.samplers), np.int32, len(plan.samplers))
        positions = np.fromiter(
            (sampler.sequence.num_tokens for sampler in plan.samplers), np.int32, len(plan.samplers))
        variant = Variant(self._variants[slots].max())
        rows = self._rows.rows(slots, positions, bucket_for(self.programs.row_buckets, len(slots)))
        state = self.state if variant == Variant.FULL else None
        state, sampled = self.programs.sample(variant, self.head, state, hidden, rows)
        if variant == Variant.FULL:
            self.state = state
        return sampled

    def _prompt_logprobs(self, plan: StepPlan, query_start: Any, hidden: Any) -> Iterator[PromptLogprobs]:
        size = prompt_logprob_rows(hidden.shape[0])
        for sequence, slot, start, count in zip(plan.sequences, plan.slots, plan.starts, plan.counts, strict=True):
            if sequence.index != 0 or sequence.request.params.prompt_logprobs is None:
                continue
            # The hidden state at a position predicts the token after it; what an earlier pass reported is skipped.
            done = sequence.request.num_prompt_logprobs
            first, stop = max(start + 1, done), min(start + count + 1, sequence.num_prompt)
            for chunk in range(first, stop, size):
                taken = min(size, stop - chunk)
                row = int(query_start[slot]) + chunk - 1 - start
                shift = max(row + size - hidden.shape[0], 0)
                targets = np.zeros(size, np.int32)
                targets[shift:shift + taken] = sequence.tokens[chunk:chunk + taken]
                values = self.programs.prompt_logprobs(self.head, hidden, row - shift, targets)
                yield PromptLogprobs(sequence, chunk, taken, shift, values)


def _chunks(lines: np.ndarray, size: int, fill: int) -> Iterator[np.ndarray]:
    for first in range(0, len(lines), size):
        yield padded_lines(lines[first:first + size], size, fill)
