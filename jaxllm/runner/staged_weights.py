"""``StagedWeights``: a model's parameters over the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxllm.errors import EngineError
from jaxllm.models.matching import match_params
from jaxllm.models.model import Params, nest
from jaxllm.parallel.partition import PlacedParams
from jaxllm.parallel.pipeline import Pipeline
from jaxllm.runner.weights import Weights
from jaxllm.weights.placement import place
from jaxllm.weights.trees import flatten, misfit_error


class StagedWeights:
    """A model's parameters, each on the devices of the stages that need it. ``outer``, ``head`` and ``layers`` are
    those of the last stage, which samples.

    stages: those of each stage; ``None`` for one that is on other processes' devices alone.
    """

    def __init__(self, pipeline: Pipeline, params: Params | Sequence[PlacedParams]) -> None:
        self._pipeline = pipeline
        self.stages = [Weights(placed.partition, placed) if placed.partition.here else None
                       for placed in self._placed_on_stages(params)]

    def _placed_on_stages(self, params: Params | Sequence[PlacedParams]) -> Sequence[PlacedParams]:
        if isinstance(params, Sequence):
            return params
        leaves = flatten(params)
        found, problems = match_params(self._pipeline.whole, leaves, spread=True)
        if problems:
            raise misfit_error(len(leaves), problems)
        return [PlacedParams(stage, nest(place(stage, found)) if stage.here else {})
                for stage in self._pipeline.stages]

    def replace(self, params: Params | Sequence[PlacedParams]) -> None:
        """As ``Weights.replace``."""
        for weights, placed in zip(self.stages, self._placed_on_stages(params), strict=True):
            if weights is not None:
                weights.replace(placed)

    @property
    def _here(self) -> list[Weights]:
        return [weights for weights in self.stages if weights is not None]

    @property
    def _last(self) -> Weights:
        weights = self.stages[-1]
        assert weights is not None
        return weights

    @property
    def outer(self) -> Params:
        """The last stage's."""
        return self._last.outer

    @property
    def head(self) -> Params:
        """The last stage's."""
        return self._last.head

    @property
    def layers(self) -> list[Any]:
        """The last stage's."""
        return self._last.layers

    @property
    def present(self) -> bool:
        """Whether there are parameters."""
        return self._here[0].present

    @property
    def params(self) -> Params:
        """The parameters as a nested dict, each where its stage is; ``EngineError`` while there are none, and where
        some are other processes'."""
        if None in self.stages:
            raise EngineError("this process has the parameters of some stages of the pipeline only; the other ones are "
                              "other processes'")
        parts = [weights.params for weights in self._here]
        whole: Params = {}
        for part in reversed(parts):  # of what both ends have, that of the first
            whole |= part
        return {**whole, "layers": {number: layer for part in parts for number, layer in part["layers"].items()}}

    def placed_on(self, partition: Pipeline) -> Sequence[PlacedParams]:
        """The same parameters on the stages of another replica, moved there from these."""
        return [PlacedParams(stage, {}) if weights is None else weights.placed_on(stage)
                for weights, stage in zip(self.stages, partition.stages, strict=True)]

    def take_over(self, other: StagedWeights) -> None:
        """Have the parameters of another replica."""
        self.replace(other.placed_on(self._pipeline))

    def put_aside(self) -> None:
        """Move them to host memory; nothing where there are none."""
        for weights in self._here:
            weights.put_aside()

    def drop(self) -> None:
        """Forget them."""
        for weights in self._here:
            weights.drop()

    def take_back(self) -> None:
        """Undo ``put_aside``."""
        for weights in self._here:
            weights.take_back()
