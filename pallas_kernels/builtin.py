"""The implementations that this package brings."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pallas_kernels import cpu
from pallas_kernels.registry import PLATFORMS, register


def register_all() -> None:
    """Enter them in the registry; each is imported when it is first used."""
    register(
        "matmul",
        "cpu",
        _loader("pallas_kernels.matmul.cpu", "matmul_cpu"),
        summary="native, bfloat16",
        default_on=("cpu",),
        unavailable=cpu.unavailable,
        unsupported=_lazy("pallas_kernels.matmul.cpu", "unsupported"),
    )
    register(
        "matmul",
        "xla",
        _loader("pallas_kernels.matmul.xla", "matmul_xla"),
        summary="one dot, any backend",
        default_on=PLATFORMS,
    )
    register(
        "matmul",
        "oracle",
        _loader("pallas_kernels.matmul.oracle", "matmul_oracle"),
        summary="float64 on the host, for tests",
    )
    register(
        "swiglu",
        "cpu",
        _loader("pallas_kernels.swiglu.cpu", "swiglu_cpu"),
        summary="native, bfloat16, gated before it is written",
        default_on=("cpu",),
        unavailable=cpu.unavailable,
        unsupported=_lazy("pallas_kernels.swiglu.cpu", "unsupported"),
    )
    register(
        "swiglu",
        "xla",
        _loader("pallas_kernels.swiglu.xla", "swiglu_xla"),
        summary="one matmul and elementwise XLA, any backend",
        default_on=PLATFORMS,
    )
    register(
        "swiglu",
        "oracle",
        _loader("pallas_kernels.swiglu.oracle", "swiglu_oracle"),
        summary="float64 on the host, for tests",
    )
    register(
        "paged_attention",
        "cpu",
        _loader("pallas_kernels.paged_attention.cpu", "paged_attention_cpu"),
        summary="native, bfloat16",
        default_on=("cpu",),
        unavailable=cpu.unavailable,
        unsupported=_lazy("pallas_kernels.paged_attention.cpu", "unsupported"),
    )
    register(
        "paged_attention",
        "xla",
        _loader("pallas_kernels.paged_attention.xla", "paged_attention_xla"),
        summary="tuned XLA loops, any backend",
        default_on=PLATFORMS,
    )
    register(
        "paged_attention",
        "oracle",
        _loader("pallas_kernels.paged_attention.oracle", "paged_attention_oracle"),
        summary="float64 on the host, for tests",
    )
    register(
        "kv_write",
        "cpu",
        _loader("pallas_kernels.kv_write.cpu", "kv_write_cpu"),
        summary="native copies in place",
        default_on=("cpu",),
        unavailable=cpu.unavailable,
    )
    register(
        "kv_write",
        "xla",
        _loader("pallas_kernels.kv_write.xla", "kv_write_xla"),
        summary="one scatter per pool, any backend",
        default_on=PLATFORMS,
    )
    register(
        "kv_write",
        "oracle",
        _loader("pallas_kernels.kv_write.oracle", "kv_write_oracle"),
        summary="a loop on the host, for tests",
    )
    register(
        "rope_kv_write",
        "cpu",
        _loader("pallas_kernels.rope_kv_write.cpu", "rope_kv_write_cpu"),
        summary="native, bfloat16, in place",
        default_on=("cpu",),
        unavailable=cpu.unavailable,
        unsupported=_lazy("pallas_kernels.rope_kv_write.cpu", "unsupported"),
    )
    register(
        "rope_kv_write",
        "xla",
        _loader("pallas_kernels.rope_kv_write.xla", "rope_kv_write_xla"),
        summary="elementwise XLA and kv_write, any backend",
        default_on=PLATFORMS,
    )
    register(
        "rope_kv_write",
        "oracle",
        _loader("pallas_kernels.rope_kv_write.oracle", "rope_kv_write_oracle"),
        summary="float64 on the host, for tests",
    )
    _register_sampling()
    _register_quantized()


def _register_sampling() -> None:
    for operation, module in (("sample_rows", "xla"), ("token_logprobs", "logprobs"), ("log_normalizer", "logprobs")):
        register(
            operation,
            "cpu",
            _loader("pallas_kernels.sampling.cpu", f"{operation}_cpu"),
            summary="native, a row in a core's cache",
            default_on=("cpu",),
            unavailable=cpu.unavailable,
            unsupported=_lazy("pallas_kernels.sampling.cpu", "unsupported"),
        )
        register(
            operation,
            "xla",
            _loader(f"pallas_kernels.sampling.{module}", f"{operation}_xla"),
            summary="passes over a few rows, any backend",
            default_on=PLATFORMS,
        )
        register(
            operation,
            "oracle",
            _loader("pallas_kernels.sampling.oracle", f"{operation}_oracle"),
            summary="a sort in float64 on the host, for tests",
        )


def _register_quantized() -> None:
    for operation in ("quantized_matmul", "quantized_swiglu"):
        register(
            operation,
            "cpu",
            _loader("pallas_kernels.quantized.cpu", f"{operation}_cpu"),
            summary="native, bfloat16, decoded in the cache",
            default_on=("cpu",),
            unavailable=cpu.unavailable,
            unsupported=_lazy("pallas_kernels.quantized.cpu", "unsupported"),
        )
        register(
            operation,
            "xla",
            _loader("pallas_kernels.quantized.xla", f"{operation}_xla"),
            summary="decoding and one dot, any backend",
            default_on=PLATFORMS,
        )
        register(
            operation,
            "oracle",
            _loader("pallas_kernels.quantized.oracle", f"{operation}_oracle"),
            summary="float64 on the host, for tests",
        )


def _loader(module: str, name: str) -> Callable[[], Callable[..., Any]]:
    def load() -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(import_module(module), name)
        return function

    return load


def _lazy(module: str, name: str) -> Callable[..., Any]:
    def call(**operands: Any) -> Any:
        return _loader(module, name)()(**operands)

    return call
