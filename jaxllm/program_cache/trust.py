"""Whether the code that this process runs is what the source files say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class _Process:
    sources_trusted: bool = False


_process = _Process()


def trust_sources() -> None:
    """Promise that nothing in this process patches jaxllm or registers kernels, weight types or models with it.

    Executables are then found by their description and the source files, without tracing (``ExecutableCache.get``).
    The command line does this; a script that changes nothing of jaxllm may too, before it makes an ``LLM``.
    """
    _process.sources_trusted = True


def sources_are_trusted() -> bool:
    """Whether ``trust_sources`` was called."""
    return _process.sources_trusted
