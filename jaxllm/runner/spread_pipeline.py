"""``SpreadPipelineRunner``: a pipeline whose stages are on the devices of several processes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxllm.engine.plan import StepPlan
from jaxllm.runner.batch import StepBatch, build_batch
from jaxllm.runner.buckets import bucket_for
from jaxllm.runner.handover import Handover
from jaxllm.runner.pipeline import PipelineRunner
from jaxllm.runner.programs import Programs
from jaxllm.runner.runner import Runner, StepResult
from jaxllm.runner.staged_weights import StagedWeights


class SpreadPipelineRunner(PipelineRunner):
    """What one process runs of it: the stages of which it has devices.

    Every process is given the same plans. Programs over the devices of two stages (``Handover``) are dispatched by both
    sides at the same place in a step, one after the other, so that no process waits for what another one has yet to
    come to: after the first stage has begun a step, it is given the tokens of the step before those that are under way
    (of two stages: of the last one, which was computed meanwhile), then rows are handed on from stage to stage.
    Nothing is left under way on one side when no further step comes.
    """

    def __init__(self, programs: Sequence[Programs], weights: StagedWeights) -> None:
        stages = [each.partition for each in programs]
        self._onward = [Handover(*neighbours) for neighbours in itertools.pairwise(stages)]
        self._back = Handover(stages[-1], stages[0])
        super().__init__(programs, weights)

    def reset(self) -> None:
        """As ``PipelineRunner.reset``, of the stages that are here."""
        Runner.reset(self)
        for stage in self._earlier:
            stage.reset()
        first = self._earlier[0]
        self._newest: Any = None
        if first.here:
            self._newest = first.partition.put_small(np.zeros(self.config.max_num_seqs, np.int32))
        # Each slot's newest token after each of the steps that are under way, and whether the step sampled any.
        size = len(self._earlier)
        self._steps = collections.deque([(self.newest, False)] * size, size)
        self._sent: Any = None

    @property
    def _device_state(self) -> Any:
        return [(stage.cache, stage.table) for stage in self.stages], self.state, self.newest, self._newest

    def dispatch(self, plan: StepPlan) -> StepResult:
        """As ``PipelineRunner.dispatch``; there is something in the result where the last stage is here."""
        self._samples = bool(plan.sampled)
        if self.here:
            return super().dispatch(plan)
        self.move_blocks(plan)
        self._forward(build_batch(plan, bucket_for(self.programs.token_buckets, plan.num_tokens),
                                  self.config.max_num_seqs, self.programs.row_buckets[-1]))
        self._hand_back()
        return _PassedStep(None, [], sent=self._sent)

    def _hand_back(self) -> None:
        self._steps.append((self.newest, self._samples))

    def _forward(self, batch: StepBatch, *, read: bool = True) -> tuple[Any, Any]:
        shape, dtype = (batch.num_tokens, self.model.config.hidden_size), self.model.dtype
        x: Any = None
        for number, (stage, weights) in enumerate(zip(self.stages, self.staged.stages, strict=True)):
            if number:
                x, sent = self._onward[number - 1](x, shape, dtype)
                self._sent = self._sent if sent is None else sent
            if stage.here:
                assert weights is not None
                if number:
                    step, sample_rows = stage.programs.resume(stage.table, batch)
                else:
                    x, step, sample_rows = stage.programs.begin(weights.outer, stage.table, self._newest, batch)
                stage.cache, x = stage.programs.layers(weights.layers, x, step, stage.cache, read=read)
            else:
                x = None
            if not number:
                self._take_tokens()
        return self.programs.end(self.staged.outer, x, sample_rows) if self.here and read else (None, None)

    def _take_tokens(self) -> None:
        """Give the first stage those that the next step is fed."""
        newest, sampled = self._steps[0]
        if sampled:
            found, sent = self._back(newest, (self.config.max_num_seqs,), np.int32)
            self._newest = self._newest if found is None else found
            self._sent = self._sent if sent is None else sent


@dataclasses.dataclass(frozen=True, kw_only=True)
class _PassedStep(StepResult):
    """Of a process that has computed its part and handed it on. sent: what is there once it has."""

    sent: Any

    def fetch(self) -> StepResult:
        jax.block_until_ready(self.sent)
        return StepResult(None, [])
