"""What the machine offers: the dtype that is fast on it and the memory that is free."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxllm.errors import ParameterError
from pallas_kernels import cpu

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16, "float16": jnp.float16}
_ALIASES = {"float": "float32", "half": "float16", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def resolve_dtype(dtype: Any, platform: str, parameter: str = "dtype") -> jnp.dtype:
    """A dtype of weights and activations from a name, a numpy or JAX dtype, or "auto" (``default_dtype``).

    parameter: what an error calls it.
    """
    if dtype == "auto":
        return default_dtype(platform)
    allowed = "'auto', 'bfloat16', 'float16' or 'float32'"
    name = _ALIASES.get(dtype, dtype) if isinstance(dtype, str) else dtype
    try:
        found = jnp.dtype(name)
    except TypeError:
        raise ParameterError(parameter, dtype, allowed) from None
    if found.name not in DTYPES:
        raise ParameterError(parameter, dtype, allowed)
    return found


def default_dtype(platform: str) -> jnp.dtype:
    """bfloat16 where the hardware multiplies it natively (Ampere and newer, TPUs, CPUs with AVX512-BF16 or AMX) and on
    CPUs with native kernels, else float32."""
    if platform == "cpu":
        return jnp.dtype(jnp.bfloat16 if cpu.unavailable() is None or cpu_has_bfloat16() else jnp.float32)
    if platform in ("gpu", "cuda", "rocm"):
        capability = getattr(jax.local_devices()[0], "compute_capability", "8.0")
        return jnp.dtype(jnp.bfloat16 if float(capability) >= 8.0 else jnp.float32)
    return jnp.dtype(jnp.bfloat16)


def cpu_has_bfloat16() -> bool:
    """Whether this CPU has bfloat16 dot products (AVX512-BF16 or AMX, as Linux reports them)."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return "avx512_bf16" in flags or "amx_bf16" in flags


def free_host_memory() -> int:
    """Bytes of host memory that can be had without swapping, a container's limit included."""
    free = _meminfo_available()
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 0))
    return free


def free_device_memory(device: jax.Device, utilization: float) -> int:
    """Bytes of a device's memory that may be used: ``utilization`` of all of it, less what is in use."""
    statistics = device.memory_stats() or {}
    if "bytes_limit" not in statistics:
        raise ParameterError("kv_cache_bytes", None, f"a number: {device.device_kind} does not report its memory")
    return int(statistics["bytes_limit"] * utilization) - int(statistics.get("bytes_in_use", 0))


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroup(name: str) -> int | None:
    try:
        return int(Path("/sys/fs/cgroup", name).read_text())
    except (OSError, ValueError):
        return None
