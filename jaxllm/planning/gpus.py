"""GPUs as data sheets describe them: what they hold, how fast they compute and read, what links them."""

from __future__ import annotations

import dataclasses

from jaxllm.errors import ParameterError


@dataclasses.dataclass(frozen=True)
class Link:
    """What moves numbers between GPUs: bytes per second that one GPU sends, and seconds of each hop of a collective.

    Seconds of a hop are those of NCCL's own model of its ring in the protocol for short messages (``hwLat``, LL, in
    its src/graph/tuning.cc), to which every collective adds ``START_SECONDS`` (``baseLat`` there).
    """

    name: str
    bytes_per_second: float
    hop_seconds: float


START_SECONDS = 6.6e-6
"""Of any collective, before its first hop."""
GPUS_PER_NODE = 8


@dataclasses.dataclass(frozen=True)
class GPU:
    """A GPU.

    capability: compute capability, which says what its units can do.
    memory_bytes: in all, as the driver reports them. bandwidth: of the memory, bytes per second.
    bfloat16_flops, fp8_flops: of dense matrix products, sums in float32, operations per second; ``None`` where the GPU
        has no such units.
    link: to the other GPUs of its node. network: of its node's network, its own share.
    """

    name: str
    kind: str
    capability: float
    memory_bytes: int
    bandwidth: float
    bfloat16_flops: float
    fp8_flops: float | None
    link: Link
    network: Link


def _nvlink(gigabytes: float) -> Link:
    return Link("NVLink", gigabytes * 1e9, 0.6e-6)


def _network(gigabits: float) -> Link:
    return Link("network", gigabits * 1e9 / 8, 2.7e-6)


_PCIE4 = Link("PCIe 4", 32e9, 1.0e-6)
_MIB = 1 << 20

# Sources: NVIDIA's data sheets of the A100 (2021), H100 (2022), H200 (2023), HGX B200 (2024), L4 and L40S (2023), where
# figures "with sparsity" are halved, and the Ada whitepaper (2022) for the RTX 4090; memory as nvidia-smi reports it.
# NVLink: half of the data sheets' figure, which counts both directions. Networks: one adapter for each GPU, as in DGX
# A100 (200 Gbit/s) and DGX H100, H200, B200 (400 Gbit/s); for PCIe cards a shared 100 Gbit/s, which is an assumption.
GPUS = {gpu.name: gpu for gpu in (
    GPU("a100-40", "NVIDIA A100-SXM4-40GB", 8.0, 40_960 * _MIB, 1.555e12, 312e12, None, _nvlink(300), _network(200)),
    GPU("a100-80", "NVIDIA A100-SXM4-80GB", 8.0, 81_920 * _MIB, 2.039e12, 312e12, None, _nvlink(300), _network(200)),
    GPU("h100", "NVIDIA H100 80GB HBM3", 9.0, 81_559 * _MIB, 3.35e12, 989.4e12, 1978.9e12, _nvlink(450), _network(400)),
    GPU("h200", "NVIDIA H200", 9.0, 143_771 * _MIB, 4.8e12, 989.4e12, 1978.9e12, _nvlink(450), _network(400)),
    GPU("b200", "NVIDIA B200", 10.0, 183_359 * _MIB, 8.0e12, 2250e12, 4500e12, _nvlink(900), _network(400)),
    GPU("l4", "NVIDIA L4", 8.9, 23_034 * _MIB, 0.3e12, 60.5e12, 121e12, _PCIE4, _network(100 / GPUS_PER_NODE)),
    GPU("l40s", "NVIDIA L40S", 8.9, 46_068 * _MIB, 0.864e12, 362e12, 733e12, _PCIE4, _network(100 / GPUS_PER_NODE)),
    GPU("rtx4090", "NVIDIA GeForce RTX 4090", 8.9, 24_564 * _MIB, 1.008e12, 165.2e12, 330.3e12, _PCIE4,
        _network(100 / GPUS_PER_NODE)),
)}

_ALIASES = {"a100": "a100-80", "h100-80": "h100", "rtx-4090": "rtx4090", "4090": "rtx4090"}


def find_gpu(name: object) -> GPU:
    """The GPU of this name, in any letter case; ``ParameterError`` for one that is not described."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-") if isinstance(name, str) else ""
    found = GPUS.get(_ALIASES.get(key, key))
    if found is None:
        raise ParameterError("gpu", name, "one of " + ", ".join(GPUS))
    return found
