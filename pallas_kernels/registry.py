"""One registry of kernel implementations: which exist for an operation, which one runs here, and why.

An implementation is chosen when a program is traced, in this order:

1. the ``implementation=`` argument of the operation;
2. the environment variable ``PALLAS_KERNELS_<OPERATION>``, for example ``PALLAS_KERNELS_KV_WRITE=oracle``;
3. the first one registered that names the current JAX backend among its ``default_on``.

``explain`` tells which of the three it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

PLATFORMS = ("cpu", "gpu", "tpu")


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation; ``load`` imports it on first use and returns the function."""

    name: str
    summary: str
    load: Callable[[], Callable[..., Any]]
    default_on: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """An implementation and the reason it was picked."""

    operation: str
    implementation: Implementation
    reason: str


_operations: dict[str, dict[str, Implementation]] = {}


def register(
    operation: str,
    name: str,
    load: Callable[[], Callable[..., Any]],
    *,
    summary: str,
    default_on: tuple[str, ...] = (),
) -> None:
    """Add an implementation; with an empty ``default_on`` it runs only when asked for by name.

    Where several name the same platform, the one registered first is the default.
    """
    unknown = [platform for platform in default_on if platform not in PLATFORMS]
    if unknown:
        raise ValueError(f"default_on={default_on!r}: platforms are {', '.join(PLATFORMS)}")
    known = _operations.setdefault(operation, {})
    if name in known:
        raise ValueError(f"operation {operation!r} already has an implementation {name!r}")
    known[name] = Implementation(name, summary, load, default_on)


def operations() -> tuple[str, ...]:
    """Names of the registered operations."""
    return tuple(_operations)


def implementations(operation: str) -> tuple[str, ...]:
    """Names of the implementations of an operation, in order of preference."""
    return tuple(_implementations(operation))


def choose(operation: str, implementation: str | None = None, platform: str | None = None) -> Choice:
    """Pick the implementation of ``operation``; ``platform`` defaults to JAX's default backend.

    Raises ValueError for an unknown operation or name, and where nothing is registered for the platform.
    """
    known = _implementations(operation)
    variable = f"PALLAS_KERNELS_{operation.upper()}"
    if implementation is not None:
        return Choice(operation, _named(known, operation, implementation, "implementation"), "asked for by argument")
    if from_environment := os.environ.get(variable):
        return Choice(operation, _named(known, operation, from_environment, variable), f"{variable} is set")
    platform = platform or jax.default_backend()
    for candidate in known.values():
        if platform in candidate.default_on:
            return Choice(operation, candidate, f"the default on {platform}")
    raise ValueError(f"{operation} has no default on platform={platform!r}; choose one of {', '.join(known)}")


def explain(operation: str, implementation: str | None = None, platform: str | None = None) -> str:
    """Say in a few lines which implementation would run, why, and what else there is."""
    choice = choose(operation, implementation, platform)
    lines = [f"{operation}: {choice.implementation.name} ({choice.reason})"]
    for candidate in _implementations(operation).values():
        mark = "*" if candidate is choice.implementation else " "
        where = "default on " + ", ".join(candidate.default_on) if candidate.default_on else "only by name"
        lines.append(f" {mark} {candidate.name}: {candidate.summary} [{where}]")
    return "\n".join(lines)


def _implementations(operation: str) -> dict[str, Implementation]:
    if operation not in _operations:
        raise ValueError(f"operation={operation!r} does not exist; there are {', '.join(_operations)}")
    return _operations[operation]


def _named(known: dict[str, Implementation], operation: str, name: str, source: str) -> Implementation:
    if name not in known:
        raise ValueError(f"{source}={name!r} is not an implementation of {operation}; there are {', '.join(known)}")
    return known[name]
