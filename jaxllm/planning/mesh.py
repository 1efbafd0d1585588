"""``MeshSizes``: how many GPUs along each axis of a mesh, and what of a model they divide."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from jaxllm.checks import check_integer
from jaxllm.errors import ParameterError
from jaxllm.models.config import DecoderConfig
from jaxllm.parallel.rules import check_size
from jaxllm.planning.gpus import GPU, Link

MOST_GPUS = 1 << 16


@dataclasses.dataclass(frozen=True)
class MeshSizes:
    """Replicas (``data``), stages of layers in each (``pipe``), GPUs that share each layer (``tensor``).

    Neighbours in the mesh are neighbours in the machine: ``tensor`` changes fastest, then ``pipe``, then ``data``.

    expert_parallel: whether whole experts are dealt out: over ``data`` x ``tensor``, or with stages over ``tensor``.
    gpus_per_node: of those that ``GPU.link`` connects.
    """

    data: int = 1
    pipe: int = 1
    tensor: int = 1
    expert_parallel: bool = False
    gpus_per_node: int = 8

    @property
    def gpus(self) -> int:
        """In all."""
        return self.data * self.pipe * self.tensor

    @property
    def experts(self) -> int:
        """Over how many GPUs the experts of a layer are spread."""
        return self.tensor * (self.data if self.spread else 1)

    @property
    def spread(self) -> bool:
        """Whether experts are spread over replicas, which then compute together; pipelines keep their own."""
        return self.expert_parallel and self.data > 1 and self.pipe == 1

    @property
    def nodes(self) -> int:
        """Machines that it takes."""
        return -(-self.gpus // self.gpus_per_node)

    @property
    def name(self) -> str:
        """Short: "T8", "T4 x P2 x D2", "1 GPU"."""
        sizes = (("T", self.tensor), ("P", self.pipe), ("D", self.data))
        parts = [f"{letter}{size}" for letter, size in sizes if size > 1]
        return (" x ".join(parts) or "1 GPU") + (" + experts" if self.expert_parallel else "")

    def link(self, gpu: GPU, axis: str) -> Link:
        """What the slowest neighbours along an axis talk over: "tensor", "pipe" or "experts"."""
        reach = {"tensor": self.tensor, "pipe": self.tensor * self.pipe, "experts": self.gpus}[axis]
        if axis == "experts" and not self.spread:
            reach = self.tensor
        return gpu.link if reach <= self.gpus_per_node and self._aligned(reach) else gpu.network

    def _aligned(self, reach: int) -> bool:
        """Whether no group of so many neighbours is cut by the end of a node."""
        return self.gpus <= self.gpus_per_node or self.gpus_per_node % reach == 0

    def check(self, config: DecoderConfig) -> None:
        """``ParameterError`` for sizes that are no numbers, or do not divide what they share out of this model."""
        for name, size in (("data_parallel_size", self.data), ("pipeline_parallel_size", self.pipe),
                           ("tensor_parallel_size", self.tensor), ("gpus_per_node", self.gpus_per_node)):
            check_integer(name, size, 1, MOST_GPUS)
        if not isinstance(self.expert_parallel, bool):
            raise ParameterError("enable_expert_parallel", self.expert_parallel, "True or False")
        if self.expert_parallel and config.moe is None:
            raise ParameterError("enable_expert_parallel", True, "only for models with experts, which this one of "
                                 f"family {config.family} has not")
        check_size(config, self.tensor, by_expert=self.expert_parallel)
        if self.pipe > config.num_layers:
            raise ParameterError("pipeline_parallel_size", self.pipe, f"at most {config.num_layers}, the model's "
                                 "layers")
        if config.moe is not None and self.expert_parallel and config.moe.num_experts % self.experts:
            raise ParameterError("data_parallel_size", self.data, f"a number that, times {self.tensor} "
                                 f"(tensor_parallel_size), divides the model's {config.moe.num_experts} experts")


def meshes_of(gpus: int, config: DecoderConfig, gpus_per_node: int) -> Iterator[MeshSizes]:
    """Every mesh of so many GPUs that the model can be divided over. Whole experts are dealt out where they cannot be
    cut: on one replica a step costs as much either way."""
    for tensor in _divisors(gpus):
        for pipe in _divisors(gpus // tensor):
            meshes = (MeshSizes(gpus // tensor // pipe, pipe, tensor, experts, gpus_per_node)
                      for experts in (False, True))
            found = next((mesh for mesh in meshes if _divides(mesh, config)), None)
            if found is not None:
                yield found


def _divides(mesh: MeshSizes, config: DecoderConfig) -> bool:
    try:
        mesh.check(config)
    except ParameterError:
        return False
    return True


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]
