"""The implementations that this package brings."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pallas_kernels import cpu as native
from pallas_kernels import triton_launch
from pallas_kernels.mosaic_gpu import device
from pallas_kernels.registry import PLATFORMS, register


def register_all() -> None:
    """Enter them in the registry; each is imported when it is first used."""
    _register(
        "matmul",
        cpu="native, bfloat16",
        triton="one order of sums for any number of rows, Ampere and newer",
        triton_default_on=(),
        xla="one dot, any backend",
        oracle="float64 on the host, for tests",
    )
    _register(
        "grouped_matmul",
        cpu="native, bfloat16",
        pallas="Mosaic GPU: TMA and wgmma, Hopper",
        triton="work that follows the rows, Ampere and newer",
        xla="a loop over tiles, any backend",
        oracle="float64 on the host, for tests",
    )
    _register(
        "gated_matmul",
        cpu="native, bfloat16, gated before it is written",
        xla="one matmul and elementwise XLA, any backend",
        oracle="float64 on the host, for tests",
    )
    _register(
        "paged_attention",
        cpu="native, bfloat16",
        pallas="Mosaic GPU: TMA and wgmma, Hopper",
        triton="tiles on tensor cores, Ampere and newer",
        xla="tuned XLA loops, any backend",
        oracle="float64 on the host, for tests",
    )
    _register(
        "rms_norm",
        cpu="native, bfloat16",
        xla="elementwise XLA, any backend",
        oracle="float64 on the host, for tests",
    )
    _register(
        "kv_write",
        cpu="native copies in place",
        triton="in place, Ampere and newer",
        xla="one scatter per pool, any backend",
        oracle="a loop on the host, for tests",
    )
    _register(
        "rope_kv_write",
        cpu="native, bfloat16, in place",
        triton="one pass, in place, Ampere and newer",
        xla="elementwise XLA and kv_write, any backend",
        oracle="float64 on the host, for tests",
    )
    for operation, module in (("sample_rows", "xla"), ("token_logprobs", "logprobs"), ("log_normalizer", "logprobs")):
        _register(
            operation,
            folder="sampling",
            xla_module=module,
            cpu="native, a row in a core's cache",
            xla="passes over a few rows, any backend",
            oracle="a sort in float64 on the host, for tests",
        )
    for operation in ("quantized_matmul", "quantized_gated_matmul", "quantized_grouped_matmul"):
        _register(
            operation,
            folder="quantized",
            cpu="native, bfloat16, decoded in the cache",
            xla="decoding and one dot, any backend",
            oracle="float64 on the host, for tests",
        )


def _register(
    operation: str,
    *,
    xla: str,
    oracle: str,
    cpu: str | None = None,
    pallas: str | None = None,
    triton: str | None = None,
    triton_default_on: tuple[str, ...] = ("gpu",),
    folder: str | None = None,
    xla_module: str = "xla",
) -> None:
    """Register the implementations of an operation, given their summaries: the functions OPERATION_cpu,
    OPERATION_pallas and OPERATION_triton (where there are such), OPERATION_xla and OPERATION_oracle in modules of the
    package's folder, which is named after the operation. Those of the first three also have ``unsupported``.
    """
    package = f"pallas_kernels.{folder or operation}"
    for name, summary, default_on, unavailable in (
        ("cpu", cpu, ("cpu",), native.unavailable),
        ("pallas", pallas, ("gpu",), device.unavailable),
        ("triton", triton, triton_default_on, triton_launch.unavailable),
    ):
        if summary is not None:
            register(
                operation,
                name,
                _loader(f"{package}.{name}", f"{operation}_{name}"),
                summary=summary,
                default_on=default_on,
                unavailable=unavailable,
                unsupported=_lazy(f"{package}.{name}", "unsupported"),
            )
    register(
        operation, "xla", _loader(f"{package}.{xla_module}", f"{operation}_xla"), summary=xla, default_on=PLATFORMS)
    register(operation, "oracle", _loader(f"{package}.oracle", f"{operation}_oracle"), summary=oracle)


def _loader(module: str, name: str) -> Callable[[], Callable[..., Any]]:
    def load() -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function

    return load


def _lazy(module: str, name: str) -> Callable[..., Any]:
    def call(**operands: Any) -> Any:
        return _loader(module, name)()(**operands)

    return call
