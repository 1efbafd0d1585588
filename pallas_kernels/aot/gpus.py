"""GPUs that programs can be compiled for: what the compilers need to know of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, Mesh, use_abstract_mesh


@dataclass(frozen=True)
class GPU:
    """A GPU as NVIDIA's data sheets and the driver describe it.

    shared_per_core: bytes of shared memory of a streaming multiprocessor; a thread block can have shared_per_block.
    bandwidth: of its memory, bytes per second. memory: bytes. clock: GHz.
    """

    kind: str
    capability: tuple[int, int]
    cores: int
    shared_per_core: int
    shared_per_block: int
    l2: int
    bandwidth: float
    memory: float
    clock: float


GPUS = {
    "a100": GPU("NVIDIA A100-SXM4-80GB", (8, 0), 108, 167_936, 166_912, 41_943_040, 2.04e12, 85e9, 1.41),
    "h100": GPU("NVIDIA H100 80GB HBM3", (9, 0), 132, 233_472, 232_448, 52_428_800, 3.35e12, 85e9, 1.98),
    "h200": GPU("NVIDIA H200", (9, 0), 132, 233_472, 232_448, 62_914_560, 4.8e12, 150e9, 1.98),
    "b200": GPU("NVIDIA B200", (10, 0), 148, 233_472, 232_448, 132_644_864, 8.0e12, 192e9, 1.96),
}

_TARGET = """
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: {gpu.shared_per_core}
  shared_memory_per_block_optin: {gpu.shared_per_block}
  threads_per_core_limit: 2048 core_count: {gpu.cores} fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth} l2_cache_size: {gpu.l2} clock_rate_ghz: {gpu.clock} device_memory_size: {memory}
  cuda_compute_capability {{ major: {gpu.capability[0]} minor: {gpu.capability[1]} }}
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 7 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{gpu.kind}"
"""


def find(name: str) -> GPU:
    """The GPU of this name; raises ValueError for one that is not described."""
    if name not in GPUS:
        raise ValueError(f"gpu={name!r} is not described; there are {', '.join(GPUS)}")
    return GPUS[name]


def mesh_of(name: str, shape: tuple[int, ...] = (1,), axes: tuple[str, ...] = ("x",)) -> Mesh:
    """A mesh of compile-only devices, all GPUs of one host."""
    gpu = find(name)
    count = 1
    for size in shape:
        count *= size
    config = _TARGET.format(gpu=gpu, bandwidth=int(gpu.bandwidth), memory=int(gpu.memory))
    topology = topologies.get_topology_desc(platform="cuda", target_config=config, topology=f"1x1x{count}")
    return topologies.make_mesh(topology, shape, axes)


@contextmanager
def lowering_for(name: str) -> Iterator[None]:
    """Kernels that are lowered within know their GPU; not for use around a mesh's own context, which says it itself."""
    gpu = find(name)
    device = AbstractDevice(gpu.kind, gpu.cores, "gpu")
    with use_abstract_mesh(AbstractMesh((1,), ("x",), axis_types=AxisType.Auto, abstract_device=device)):
        yield


def replicated(mesh: Mesh) -> jax.sharding.NamedSharding:
    """The sharding of an argument that every device holds whole."""
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
