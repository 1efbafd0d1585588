"""Batches of requests from a file to a file, resumable after any end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxllm.batch.run import run_batch
    from jaxllm.batch.summary import BatchSummary

_HOMES = {"BatchSummary": "summary", "run_batch": "run"}

__all__ = ["BatchSummary", "run_batch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
