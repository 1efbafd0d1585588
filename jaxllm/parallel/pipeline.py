"""Where the replicas of a model are."""

from __future__ import annotations

import jax

from jaxllm.models.model import Model
from jaxllm.parallel.mesh import tensor_mesh
from jaxllm.parallel.partition import Partition


def replica_partitions(model: Model, mesh: jax.sharding.Mesh) -> list[Partition]:
    """For each replica, its devices and what they have of the model. mesh: of ``jaxllm.parallel.mesh.AXES``."""
    if mesh.devices.size == 1 and mesh.devices.flat[0] == jax.devices()[0]:
        return [Partition(model)]
    return [Partition(model, tensor_mesh(mesh, data=number)) for number in range(mesh.devices.shape[0])]
