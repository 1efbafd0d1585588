"""Meshes: which devices there are, and which of them are replicas, stages of a pipeline, or share every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxllm.checks import check_integer
from jaxllm.errors import ParameterError

DATA, PIPE, TENSOR = AXES = ("data", "pipe", "tensor")
"""The axes of a mesh: replicas; stages, each some of the layers; and devices that have a part of every layer."""

AXIS_RULES: Mapping[str, str] = {
    **dict.fromkeys(("data", "dp", "fsdp", "batch", "replica"), DATA),
    **dict.fromkeys(("pipe", "pp", "stage", "pipeline"), PIPE),
    **dict.fromkeys(("tensor", "tp", "model", "mp", "mdl"), TENSOR),
}
"""What trainers call them."""


def device_mesh(*, data: int = 1, pipe: int = 1, tensor: int = 1, devices: Sequence[jax.Device] | None = None
                ) -> jax.sharding.Mesh:
    """The first ``data * pipe * tensor`` devices as a mesh of ``AXES``, neighbours along ``tensor``.

    devices: those to take from; by default this process's, or all processes' where it has too few. Raises
    ``ParameterError`` for sizes that are no positive integers, and where there are too few devices.
    """
    sizes = {"data_parallel_size": data, "pipeline_parallel_size": pipe, "tensor_parallel_size": tensor}
    for name, size in sizes.items():
        check_integer(name, size, 1)
    wanted = data * pipe * tensor
    own = jax.local_devices() if devices is None else []
    found = list(devices if devices is not None else own if wanted <= len(own) else jax.devices())
    if wanted > len(found):
        largest = max(sizes, key=lambda name: sizes[name])
        product = "" if wanted == sizes[largest] else (
            f" (data {data} x pipeline {pipe} x tensor {tensor} need {wanted} devices)")
        raise ParameterError(largest, sizes[largest], f"as many devices as there are, which is {len(found)}{product}")
    return jax.sharding.Mesh(np.array(found[:wanted]).reshape(data, pipe, tensor), AXES)


def as_device_mesh(mesh: Any, rules: Mapping[str, str] = AXIS_RULES) -> jax.sharding.Mesh:
    """A mesh of any axes as one of ``AXES`` over the same devices.

    rules: what each axis becomes, by its name (in lower case); axes that become the same are joined, in their order,
    and those of one device need no rule. Raises ``ParameterError`` for what is no mesh, for one
    without devices, and for axes without a rule.
    """
    if not isinstance(mesh, jax.sharding.Mesh):
        raise ParameterError("mesh", mesh, "a jax.sharding.Mesh")
    if mesh.size == 0:
        raise ParameterError("mesh", dict(mesh.shape), "one with devices")
    unknown = [name for name, size in mesh.shape.items() if size > 1 and rules.get(str(name).lower()) not in AXES]
    if unknown:
        raise ParameterError("mesh", dict(mesh.shape), f"axes whose names say what they are for, not {unknown}: "
                             + ", ".join(rules) + "; jaxllm.parallel.as_device_mesh(mesh, rules) names others")
    roles = [rules.get(str(name).lower(), TENSOR) for name in mesh.axis_names]
    order = sorted(range(len(roles)), key=lambda axis: AXES.index(roles[axis]))
    sizes = [int(np.prod([size for size, role in zip(mesh.devices.shape, roles, strict=True) if role == axis]))
             for axis in AXES]
    return jax.sharding.Mesh(mesh.devices.transpose(order).reshape(sizes), AXES)


def chosen_mesh(mesh: Any = None, *, data_parallel_size: int = 1, pipeline_parallel_size: int = 1,
                tensor_parallel_size: int = 1) -> jax.sharding.Mesh | None:
    """The mesh that ``LLM``'s arguments ask for, of ``AXES``; ``None`` for the default device.

    mesh: of any axes (``as_device_mesh``), in place of sizes. Raises ``ParameterError``.
    """
    if mesh is None:
        found = device_mesh(data=data_parallel_size, pipe=pipeline_parallel_size, tensor=tensor_parallel_size)
    else:
        for name, size in (("data_parallel_size", data_parallel_size), ("tensor_parallel_size", tensor_parallel_size),
                           ("pipeline_parallel_size", pipeline_parallel_size)):
            if size != 1:
                raise ParameterError(name, size, "1 where there is a mesh, which says it")
        found = as_device_mesh(mesh)
    return None if found.size == 1 and found.devices.flat[0] == jax.local_devices()[0] else found


def tensor_mesh(mesh: jax.sharding.Mesh, *, data: int = 0, pipe: int = 0) -> jax.sharding.Mesh:
    """The devices of one replica's one stage, as a mesh of ``tensor`` alone. mesh: of ``AXES``."""
    return jax.sharding.Mesh(mesh.devices[data, pipe], (TENSOR,))


def is_shared(mesh: jax.sharding.Mesh) -> bool:
    """Whether some of the devices belong to this process, and others to another one."""
    return 0 < len(mesh.local_devices) < mesh.size


def takes_turns(mesh: jax.sharding.Mesh | None) -> bool:
    """Whether programs over these devices have to be waited for one after the other: on CPUs of several processes.

    There XLA starts programs when their arguments are there, in as many threads as there are cores: two could meet in
    another order than in the other process, or wait for a thread that waits. GPUs have streams.
    """
    return mesh is not None and is_shared(mesh) and jax.default_backend() == "cpu"


def stage_mesh(mesh: jax.sharding.Mesh, *, pipe: int = 0) -> jax.sharding.Mesh:
    """The devices of all replicas' one stage, as a mesh of ``data`` and ``tensor``. mesh: of ``AXES``."""
    return jax.sharding.Mesh(mesh.devices[:, pipe], (DATA, TENSOR))
