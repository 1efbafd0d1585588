"""Where the replicas of a model are, and the stages of each: runs of layers on devices of their own."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools

import jax

from jaxllm.errors import ParameterError
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model
from jaxllm.parallel.mesh import tensor_mesh
from jaxllm.parallel.partition import Partition

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


def replica_partitions(model: Model, mesh: jax.sharding.Mesh) -> list[Partition | Pipeline]:
    """Where each replica is. mesh: of ``jaxllm.parallel.mesh.AXES``."""
    data, pipe, _ = mesh.devices.shape
    if mesh.size == 1 and mesh.devices.flat[0] == jax.devices()[0]:
        return [Partition(model)]
    if pipe == 1:
        return [Partition(model, tensor_mesh(mesh, data=number)) for number in range(data)]
    return [Pipeline(model, tuple(tensor_mesh(mesh, data=number, pipe=stage) for stage in range(pipe)))
            for number in range(data)]


def stages_of(partition: Partition | Pipeline) -> list[Partition]:
    """A replica's stages; one that has all layers in one place is one."""
    return [partition] if isinstance(partition, Partition) else partition.stages


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
    """Cut the layers into runs, at least one layer each, so that the largest stage has the fewest bytes of weights, the
    embedding counted with the first and the head with the last; of such cuts, earlier stages have fewer layers.

    Raises ``ParameterError`` for more stages than layers.
    """
    count = model.config.num_layers
    if num_stages > count:
        raise ParameterError("pipeline_parallel_size", num_stages, f"at most {count}, the model's layers")
    sizes = [0] * count
    begin = end = 0
    tied = model.config.tie_word_embeddings
    for path, spec in model.specs.items():
        name, *rest = path.split(".")
        if name == "layers":
            sizes[int(rest[0])] += spec.nbytes
        begin += spec.nbytes * (name in _FIRST)
        end += spec.nbytes * (name in _LAST or (tied and name == "embedding"))
    upto = [0, *itertools.accumulate(sizes)]

    def cut(limit: int) -> list[int] | None:
        """Where stages of at most ``limit`` bytes end, the last as long as can be; ``None`` if there are none."""
        ends = [count]
        for stage in reversed(range(1, num_stages)):
            room = limit - (end if stage == num_stages - 1 else 0)
            start = max(bisect.bisect_left(upto, upto[ends[0]] - room), stage)
            if start >= ends[0]:
                return None
            ends.insert(0, start)
        return ends if upto[ends[0]] + begin + (end if num_stages == 1 else 0) <= limit else None

    low, high = 0, upto[-1] + begin + end
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cut(middle) is not None else (middle + 1, high)
    ends = cut(high)
    assert ends is not None
    return [range(start, stop) for start, stop in itertools.pairwise([0, *ends])]


