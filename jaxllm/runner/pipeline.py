"""``PipelineRunner``: runs plans through the stages of a pipeline, several on their way at once."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxllm.engine.plan import StepPlan
from jaxllm.runner.batch import StepBatch
from jaxllm.runner.programs import Programs
from jaxllm.runner.runner import Runner, StepResult
from jaxllm.runner.stage import Stage
from jaxllm.runner.staged_weights import StagedWeights


class PipelineRunner(Runner):
    """The last stage, which samples, and those before it.

    A step goes through the stages one after the other: the residual stream is handed from device to device, each stage
    makes for itself, of its own copy of the block table, what its layers share, and the sampled tokens go back to the
    first stage; the host waits for none of it. So as many steps as there are stages can be dispatched one after the
    other, and each stage works on another one (Huang et al. 2019, GPipe, of whose bubbles there are none while steps
    keep coming).

    The tokens that a step is fed were sampled as many steps before it as there are stages (``StepPlan.fed``): it then
    waits for no step that is behind it. programs: of each stage.
    """

    def __init__(self, programs: Sequence[Programs], weights: StagedWeights) -> None:
        self._earlier = [Stage(each) for each in programs[:-1]]
        super().__init__(programs[-1], weights)

    @property
    def stages(self) -> list[Stage]:
        """All of them, in order."""
        return [*self._earlier, self]

    @property
    def staged(self) -> StagedWeights:
        """The parameters."""
        weights = self.weights
        assert isinstance(weights, StagedWeights)
        return weights

    def reset(self) -> None:
        """Fresh device state in every stage."""
        super().reset()
        for stage in self._earlier:
            stage.reset()
        # On the first stage, each slot's newest token after each of the last steps.
        first = self._earlier[0].partition.put_small(np.zeros(self.config.max_num_seqs, np.int32))
        self._newest_after = collections.deque([first] * (len(self._earlier) + 1), len(self._earlier) + 1)
        self._handed_back = self.newest

    def drop_cache(self) -> None:
        """Give back the memory of all caches, until ``reset``."""
        super().drop_cache()
        for stage in self._earlier:
            stage.drop_cache()

    def compile_all(self) -> None:
        """Compile every program of every stage."""
        for stage in self.stages:
            for key in stage.programs.all_keys() if stage.here else []:
                stage.programs.compile(key)

    @property
    def _device_state(self) -> Any:
        earlier = [(stage.cache, stage.table) for stage in self._earlier]
        return super()._device_state, earlier, list(self._newest_after)

    def dispatch(self, plan: StepPlan) -> StepResult:
        """Start one step; the result's arrays are on the device and may not be ready yet."""
        try:
            return super().dispatch(plan)
        finally:  # a step that fails counts as one all the same, as plans do
            self._hand_back()

    def _hand_back(self) -> None:
        """Give the first stage the tokens that the step has sampled."""
        newest = self._newest_after[-1]
        if self._handed_back is not self.newest:
            newest = jax.device_put(self.newest, self._earlier[0].partition.replicated)
            self._handed_back = self.newest
        self._newest_after.append(newest)

    def move_blocks(self, plan: StepPlan) -> None:
        """In every stage."""
        super().move_blocks(plan)
        for stage in self._earlier:
            stage.move_blocks(plan)

    def _forward(self, batch: StepBatch, *, read: bool = True) -> tuple[Any, Any]:
        x: Any = None
        for stage, weights in zip(self.stages, self.staged.stages, strict=True):
            assert weights is not None
            if x is None:
                x, step, sample_rows = stage.programs.begin(weights.outer, stage.table, self._newest_after[0], batch)
            else:
                step, sample_rows = stage.programs.resume(stage.table, batch)
                x = jax.device_put(x, stage.partition.replicated)
            stage.cache, x = stage.programs.layers(weights.layers, x, step, stage.cache, read=read)
        return self.programs.end(self.weights.outer, x, sample_rows) if read else (None, None)
