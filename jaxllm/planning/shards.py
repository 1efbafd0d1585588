"""What one GPU of a mesh keeps of each parameter and of the cache, by the rules that the engine cuts them by."""

from __future__ import annotations

import dataclasses
import functools
import math

from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.config import DecoderConfig
from jaxllm.models.model import Model
from jaxllm.parallel.rules import AxisRules, local_config
from jaxllm.planning.mesh import MeshSizes
from jaxllm.weights.spec import ParamSpec
from jaxllm.weights.splits import split_of


def config_of_one(config: DecoderConfig, mesh: MeshSizes) -> DecoderConfig:
    """What one GPU of a stage computes: its heads, its part of the widths and of the vocabulary."""
    return config if mesh.tensor == 1 else local_config(config, mesh.tensor, by_expert=mesh.expert_parallel)


def specs_of_one(model: Model, mesh: MeshSizes) -> dict[str, ParamSpec]:
    """The parameters of all layers as one GPU keeps them.

    With experts over all replicas it has fewer of them than one replica deals out to it. Raises ``ParameterError``
    where quantized blocks would be cut.
    """
    rules = None
    if mesh.tensor > 1:
        rules = functools.cache(AxisRules(model.config, config_of_one(model.config, mesh)).ranges)

    @functools.cache
    def own(spec: ParamSpec, path: str) -> ParamSpec:
        if mesh.expert_parallel and spec.is_of_experts:
            return _dealt(spec, mesh.experts)
        return spec if rules is None else split_of(spec, rules, path)[0]

    # Equal parameters of different layers are cut once; the path is for errors.
    first: dict[ParamSpec, str] = {}
    return {path: own(spec, first.setdefault(spec, path)) for path, spec in model.specs.items()}


def _dealt(spec: ParamSpec, gpus: int) -> ParamSpec:
    """Whole experts, as many on each."""
    parts = tuple(dataclasses.replace(part, rows=math.ceil(part.rows / gpus)) for part in spec.parts)
    return dataclasses.replace(spec, shape=(spec.shape[0] // gpus, *spec.shape[1:]), parts=parts)


def cache_of_one(spec: KVSpec, heads: int) -> KVSpec:
    """What one GPU keeps of every layer's cache, with so many kv heads."""
    entries = {name: dataclasses.replace(entry, heads=heads) for name, entry in spec.entries.items()}
    return dataclasses.replace(spec, entries=entries)
