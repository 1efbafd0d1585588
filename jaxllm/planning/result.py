"""``Plan``: what ``jaxllm.plan`` finds, as plain data."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxllm.planning.collectives import Collective
from jaxllm.planning.compiled import CompiledStep
from jaxllm.planning.gpus import GPU
from jaxllm.planning.mesh import MeshSizes
from jaxllm.planning.timing import StepTime


@dataclasses.dataclass(frozen=True)
class PlannedModel:
    """The model, whole.

    active_parameters: of them, those that a token is multiplied by: of experts the ones that it takes, and of the
        embedding a row.
    quantization: as what the engine keeps its matrices, ``None`` for plain numbers of ``dtype``.
    """

    name: str
    family: str
    parameters: int
    active_parameters: int
    layers: int
    dtype: str
    quantization: str | None
    weight_bytes: int


@dataclasses.dataclass(frozen=True)
class PlannedStage:
    """One GPU of a stage of the pipeline. first_layer, last_layer: which layers it has. kv_bytes_per_token: of them."""

    first_layer: int
    last_layer: int
    weight_bytes: int
    kv_bytes_per_token: int


@dataclasses.dataclass(frozen=True)
class PlannedMemory:
    """The memory of one GPU of the fullest stage, in bytes.

    total: what it has. weights. state: block tables and the sampler's. temporary: what a step takes besides. kv_pool:
    what is left for the cache: ``gpu_memory_utilization`` of the total, less weights and state. short_by: how much more
    it would take, 0 where the model fits.
    """

    total: int
    weights: int
    state: int
    temporary: int
    kv_pool: int
    short_by: int


@dataclasses.dataclass(frozen=True)
class PlannedCache:
    """Keys and values.

    dtype. bytes_per_token: of the model, while all layers keep it. bytes_per_token_per_gpu: of one GPU of the fullest
    stage. kv_heads_per_gpu; copies: GPUs of a stage that keep the same heads. num_blocks: of one replica's pool, of
    ``block_size`` tokens each. tokens: that fit in all replicas, in sequences shorter than any window. sequences: of
    the context that was asked for that fit at once, in all replicas.
    """

    dtype: str
    bytes_per_token: int
    bytes_per_token_per_gpu: int
    kv_heads_per_gpu: int
    copies: int
    block_size: int
    num_blocks: int
    tokens: int
    sequences: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """A model on a mesh of GPUs.

    batch, context: sequences in all, and tokens of each, that ``decode`` and ``collectives`` are for. running: of the
        batch, those that fit at once. prefill: of prompts of ``context`` tokens, in full steps: of
        ``max_num_batched_tokens``, which those that are under way in a pipeline share.
    collectives: of one decoding step of one replica, all stages together.
    method: "analytical", counted from the model's description, or "compiled", where the step was compiled for the mesh
        as well: ``compiled`` is what the compiler says. Times are counted in any case.
    fits: whether weights, a step and one sequence of the context do. problem: why not. smallest: the smallest mesh of
        these GPUs that would do.
    notes: what was assumed, and what is worth knowing.
    """

    model: PlannedModel
    gpu: GPU
    mesh: MeshSizes
    batch: int
    context: int
    running: int
    max_num_batched_tokens: int
    stages: tuple[PlannedStage, ...]
    memory: PlannedMemory
    cache: PlannedCache
    collectives: tuple[Collective, ...]
    decode: StepTime
    prefill: StepTime
    fits: bool
    problem: str | None = None
    smallest: MeshSizes | None = None
    method: str = "analytical"
    compiled: CompiledStep | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it in dicts, lists, numbers and text, as ``jaxllm plan --json`` prints it."""
        found = dataclasses.asdict(self)
        found["mesh"] |= {"gpus": self.mesh.gpus, "nodes": self.mesh.nodes, "name": self.mesh.name}
        if self.smallest is not None:
            found["smallest"] |= {"gpus": self.smallest.gpus, "nodes": self.smallest.nodes, "name": self.smallest.name}
        if self.compiled is not None:
            found["compiled"]["temporary_bytes"] = self.compiled.temporary_bytes
        return found


@dataclasses.dataclass(frozen=True)
class MeshSearch:
    """Meshes of one number of GPUs, the best first. best: ``plans[0]``. reason: why it is recommended, or by how much
    it, the nearest, does not fit, where none does."""

    plans: tuple[Plan, ...]
    reason: str

    @property
    def best(self) -> Plan:
        """The one that is recommended if it fits; else the one that is nearest to it."""
        return self.plans[0]

    def to_dict(self) -> dict[str, Any]:
        """As ``Plan.to_dict``."""
        return {"reason": self.reason, "plans": [plan.to_dict() for plan in self.plans]}
