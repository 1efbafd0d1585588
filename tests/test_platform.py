"""Which dtype is chosen, and how much memory is counted on."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm import platform
from jaxllm.errors import ParameterError
from jaxllm.platform import default_dtype, free_host_memory, resolve_dtype


@pytest.mark.parametrize(("given", "expected"), [
    ("float32", "float32"), ("bf16", "bfloat16"), ("half", "float16"), (jnp.bfloat16, "bfloat16"),
    (np.float32, "float32"), (np.dtype("float16"), "float16"),
])
def test_dtypes_by_any_of_their_names(given, expected):
    assert resolve_dtype(given, "cpu").name == expected


@pytest.mark.parametrize("given", ["int8", "float64", "fp4", 7, None, np.int32])
def test_other_dtypes_are_refused_by_name(given):
    with pytest.raises(ParameterError, match="dtype"):
        resolve_dtype(given, "cpu")


@pytest.mark.parametrize(("flags", "expected"), [
    ("fpu avx2 avx512f", "float32"), ("avx512f avx512_bf16", "bfloat16"), ("amx_bf16", "bfloat16")])
def test_auto_takes_bfloat16_where_the_cpu_multiplies_it(monkeypatch, tmp_path, flags, expected):
    monkeypatch.setattr("pallas_kernels.cpu.unavailable", lambda: "no compiler")
    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    real = platform.Path
    monkeypatch.setattr(platform, "Path", lambda *parts: real(tmp_path / "cpuinfo") if parts == ("/proc/cpuinfo",)
                        else real(*parts))
    assert default_dtype("cpu").name == expected


def test_auto_takes_bfloat16_where_there_are_native_kernels(monkeypatch):
    monkeypatch.setattr(platform, "cpu_has_bfloat16", lambda: False)
    monkeypatch.setattr("pallas_kernels.cpu.unavailable", lambda: None)
    assert default_dtype("cpu").name == "bfloat16"


def test_free_memory_heeds_a_containers_limit(monkeypatch):
    assert free_host_memory() > 1 << 20
    monkeypatch.setattr(platform, "_cgroup", {"memory.max": 10 << 20, "memory.current": 4 << 20}.get)
    assert free_host_memory() == 6 << 20
