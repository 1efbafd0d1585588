"""Where the replicas of a model are, and the stages of each: runs of layers on devices of their own."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import jax

from jaxllm.errors import ParameterError
from jaxllm.kv_cache import kv_spec
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model
from jaxllm.parallel.mesh import stage_mesh, tensor_mesh
from jaxllm.parallel.partition import Partition
from jaxllm.parallel.spread import SpreadPartition

_FIRST = ("embedding", "project_in", "positions", "embedding_norm")
_LAST = ("norm", "project_out", "head")


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A model whose layers are cut into stages, one after the other, each on devices that share its layers.

    The first has the embedding as well, the last the norm and the head; where these are one matrix, both have it.

    whole: the model. meshes: of each stage, of the axis ``tensor`` alone. by_expert: as in ``Partition``.

    Raises ``ParameterError`` for more stages than layers.
    """

    whole: Model
    meshes: tuple[jax.sharding.Mesh, ...]
    by_expert: bool = False

    def __post_init__(self) -> None:
        _ = self.layers

    @functools.cached_property
    def layers(self) -> list[range]:
        """The layers of each stage."""
        return balanced_layers(self.whole, len(self.meshes))

    @functools.cached_property
    def stages(self) -> list[Partition]:
        """Each stage's devices and what they have. Their model is the part of the whole that the stage has."""
        return [Partition(stage_model(self.whole, layers, first=number == 0, last=number == len(self.meshes) - 1), mesh,
                          self.by_expert)
                for number, (layers, mesh) in enumerate(zip(self.layers, self.meshes, strict=True))]


def replica_partitions(model: Model, mesh: jax.sharding.Mesh | None, *, by_expert: bool = False
                       ) -> list[Partition | Pipeline]:
    """Where each replica is. mesh: of ``jaxllm.parallel.mesh.AXES``; ``None`` for one on the default device.

    by_expert: as in ``Partition``; experts are spread over the replicas too, where there are several without a
    pipeline. With one, they stay within each replica. Raises ``ParameterError`` where they would be spread over several
    processes.
    """
    if mesh is None:
        return [Partition(model, by_expert=by_expert)]
    data, pipe, _ = mesh.devices.shape
    if pipe == 1:
        spread = by_expert and data > 1 and model.config.moe is not None
        if spread and jax.process_count() > 1 and len({device.process_index for device in mesh.devices.flat}) > 1:
            raise ParameterError("enable_expert_parallel", True, "False where replicas are on several processes' "
                                 "devices: experts are spread over those of one process alone")
        together = SpreadPartition(model, stage_mesh(mesh), True) if spread else None
        return [Partition(model, tensor_mesh(mesh, data=number), by_expert, together) for number in range(data)]
    return [Pipeline(model, tuple(tensor_mesh(mesh, data=number, pipe=stage) for stage in range(pipe)), by_expert)
            for number in range(data)]


def stages_of(partition: Partition | Pipeline) -> list[Partition]:
    """A replica's stages; one that has all layers in one place is one."""
    return [partition] if isinstance(partition, Partition) else partition.stages


def is_here(partition: Partition | Pipeline) -> bool:
    """Whether this process has any of a replica's devices."""
    return any(stage.here for stage in stages_of(partition))


def first_here(replicas: Sequence[Partition | Pipeline]) -> Partition | Pipeline:
    """The first replica that this process has devices of."""
    return next(replica for replica in replicas if is_here(replica))


def stage_spec(spec: KVSpec, stage: Partition) -> KVSpec:
    """The part of a cache's description that a stage has. spec: of all layers, on each device."""
    return spec.of_layers(list(stage.whole.abstract_params["layers"]))


def stage_model(model: Model, layers: range, *, first: bool, last: bool) -> Model:
    """The part of a model that a stage has. What was kept as a share of all layers' is kept by itself."""
    names = {*(_FIRST if first else ()), *(_LAST if last else ())}
    if last and model.config.tie_word_embeddings:
        names.add("embedding")

    def belongs(path: str) -> bool:
        name, *rest = path.split(".")
        return int(rest[0]) in layers if name == "layers" else name in names

    return dataclasses.replace(model, specs={
        path: dataclasses.replace(spec, stack=0) for path, spec in model.specs.items() if belongs(path)})


def balanced_layers(model: Model, num_stages: int) -> list[range]:
    """Cut the layers into runs, at least one layer each, so that the largest stage has the fewest bytes of weights and
    cache; of such cuts, the one with the most equal stages.

    The embedding is counted with the first stage and the head with the last. How many tokens will be in the cache is
    not known: it is counted as if it were as large as the model's weights, in the shares that the stages have of it.

    Raises ``ParameterError`` for more stages than layers.
    """
    count = model.config.num_layers
    if num_stages > count:
        raise ParameterError("pipeline_parallel_size", num_stages, f"at most {count}, the model's layers")
    first, last, upto = _bytes_upto(model)
    cache, weights = kv_spec(model.config, model.dtype), model.weight_bytes
    most = cache.arrays_per_group
    # The stages' pools have as many blocks each, over the arrays of the group of which they have the most layers.
    members = [[0, *itertools.accumulate(layer in group.layers for layer in range(count))] for group in cache.groups]

    def size(stage: int, start: int, stop: int) -> int:
        arrays = max(layers[stop] - layers[start] for layers in members)
        return (upto[stop] - upto[start] + (first if stage == 0 else 0) + (last if stage == num_stages - 1 else 0)
                + weights * arrays // most)

    def best(cost: Callable[[int, int], int], limit: int | None) -> tuple[int, list[int]]:
        """The cheapest cut, and where its stages end. cost: of stages so far and one of so many bytes more, together.
        limit: the most bytes of a stage."""
        cuts: dict[int, tuple[int, list[int]]] = {0: (0, [])}
        for stage in range(num_stages):
            stops = range(stage + 1, count - (num_stages - stage - 1) + 1) if stage < num_stages - 1 else [count]
            found = {stop: min(((cost(before, size(stage, start, stop)), [*ends, stop])
                                for start, (before, ends) in cuts.items() if start < stop
                                and (limit is None or size(stage, start, stop) <= limit)), default=None)
                     for stop in stops}
            cuts = {stop: cut for stop, cut in found.items() if cut is not None}
        return cuts[count]

    largest, _ = best(max, None)
    _, ends = best(lambda before, size: before + size**2, largest)
    return [range(start, stop) for start, stop in itertools.pairwise([0, *ends])]


def _bytes_upto(model: Model) -> tuple[int, int, list[int]]:
    """Bytes of weights before the layers, after them, and of the first 0, 1, ... layers."""
    layers, first, last = [0] * model.config.num_layers, 0, 0
    for path, spec in model.specs.items():
        name, *rest = path.split(".")
        if name == "layers":
            layers[int(rest[0])] += spec.nbytes
        first += spec.nbytes * (name in _FIRST)
        last += spec.nbytes * (name in _LAST or (model.config.tie_word_embeddings and name == "embedding"))
    return first, last, [0, *itertools.accumulate(layers)]
