"""Which GPU a Mosaic GPU kernel is traced for."""

from __future__ import annotations

from typing import Any

import jax

HOPPER = ("H100", "H200", "H800", "H20", "GH200")
"""Parts of the device kinds of GPUs with wgmma."""


def unavailable() -> str | None:
    """Why Mosaic GPU kernels cannot run here, or ``None``."""
    device = _device()
    if device is None:
        return "there is no GPU"
    return None if _is_hopper(device) else f"it needs a Hopper GPU, and this is {device.device_kind}"


def architecture() -> str:
    """The name of the current GPU's architecture in the table of tiles."""
    if (missing := unavailable()) is not None:
        raise ValueError(f"Mosaic GPU kernels cannot be compiled here: {missing}")
    return "hopper"


def num_multiprocessors() -> int:
    """Of the current GPU."""
    device: Any = _device()
    count = getattr(device, "num_cores", None) or getattr(device, "core_count", None)
    if not count:
        raise ValueError(f"JAX does not say how many multiprocessors {device.device_kind} has")
    return int(count)


def _device() -> Any:
    """The abstract device of the mesh in context, as in compiling for a GPU that is not there; else JAX's first."""
    abstract = jax.sharding.get_abstract_mesh().abstract_device
    if abstract is not None:
        return abstract
    return next((device for device in jax.devices() if device.platform == "gpu"), None)


def _is_hopper(device: Any) -> bool:
    return any(name in device.device_kind for name in HOPPER)
