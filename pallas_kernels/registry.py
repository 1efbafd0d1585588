"""One registry of kernel implementations: which exist for an operation, which one runs here, and why.

An implementation is chosen when a program is traced, in this order:

1. the ``implementation=`` argument of the operation;
2. the environment variable ``PALLAS_KERNELS_<OPERATION>``, for example ``PALLAS_KERNELS_KV_WRITE=oracle``;
3. the first one registered that names the current JAX backend among its ``default_on``, is available on this machine
   and takes the operands at hand.

One asked for by name that is not available, or does not take the operands, is an error that says why. ``explain``
tells which of the three it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from pallas_kernels.environment import check_environment, variable_of
from pallas_kernels.errors import ChoiceError

PLATFORMS = ("cpu", "gpu", "tpu")


def _nothing(**operands: Any) -> None:
    return None


@dataclass(frozen=True)
class Implementation:
    """One way to compute an operation.

    load: imports it on first use and returns the function.
    unavailable: why it cannot run on this machine, or ``None``.
    unsupported: why it does not take some operands, which it gets by name, or ``None``.
    """

    name: str
    summary: str
    load: Callable[[], Callable[..., Any]]
    default_on: tuple[str, ...] = ()
    unavailable: Callable[[], str | None] = _nothing
    unsupported: Callable[..., str | None] = _nothing


@dataclass(frozen=True)
class Choice:
    """An implementation and the reason it was picked."""

    operation: str
    implementation: Implementation
    reason: str

    def run(self, *operands: Any, **named: Any) -> Any:
        """Call it; profiles and HLO name what it does by OPERATION.IMPLEMENTATION, such as "matmul.cpu"."""
        with jax.named_scope(f"{self.operation}.{self.implementation.name}"):
            return self.implementation.load()(*operands, **named)


_operations: dict[str, dict[str, Implementation]] = {}


def register(
    operation: str,
    name: str,
    load: Callable[[], Callable[..., Any]],
    *,
    summary: str,
    default_on: tuple[str, ...] = (),
    unavailable: Callable[[], str | None] = _nothing,
    unsupported: Callable[..., str | None] = _nothing,
) -> None:
    """Add an implementation (see ``Implementation``); with an empty ``default_on`` it runs only when asked for by name.

    Where several name the same platform, the one registered first is the default.
    """
    unknown = [platform for platform in default_on if platform not in PLATFORMS]
    if unknown:
        raise ValueError(f"default_on={default_on!r}: platforms are {', '.join(PLATFORMS)}")
    known = _operations.setdefault(operation, {})
    if name in known:
        raise ValueError(f"operation {operation!r} already has an implementation {name!r}")
    known[name] = Implementation(name, summary, load, default_on, unavailable, unsupported)


def operations() -> tuple[str, ...]:
    """Names of the registered operations."""
    return tuple(_operations)


def implementations(operation: str) -> tuple[str, ...]:
    """Names of the implementations of an operation that can run on this machine, in order of preference."""
    return tuple(name for name, candidate in _implementations(operation).items() if candidate.unavailable() is None)


def choose(
    operation: str,
    implementation: str | None = None,
    platform: str | None = None,
    operands: Mapping[str, Any] | None = None,
) -> Choice:
    """Pick the implementation of ``operation``.

    platform: if not given, that of the device which JAX's mesh context describes, else JAX's default backend.
    operands: what it is to be called with, by name; without them, whatever it takes is left aside.

    Raises ChoiceError, a ValueError, for an unknown operation or name, for a named implementation that is not available
    or does not take the operands, where nothing is registered for the platform, and for a variable of the environment
    that begins with ``PALLAS_KERNELS_`` and names no operation.
    """
    known = _implementations(operation)
    check_environment(_operations)
    variable = variable_of(operation)
    if implementation is not None:
        found = _named(known, operation, implementation, "implementation", operands)
        return Choice(operation, found, "asked for by argument")
    if from_environment := os.environ.get(variable):
        found = _named(known, operation, from_environment, variable, operands)
        return Choice(operation, found, f"{variable} is set")
    platform = platform or platform_of_trace()
    for candidate in known.values():
        if platform in candidate.default_on and _obstacle(candidate, operands) is None:
            return Choice(operation, candidate, f"the default on {platform}")
    raise ChoiceError(f"{operation} has no default on platform={platform!r}; choose one of {', '.join(known)}")


def explain(operation: str, implementation: str | None = None, platform: str | None = None) -> str:
    """Say in a few lines which implementation would run, why, and what else there is."""
    choice = choose(operation, implementation, platform)
    lines = [f"{operation}: {choice.implementation.name} ({choice.reason})"]
    for candidate in _implementations(operation).values():
        mark = "*" if candidate is choice.implementation else " "
        where = "default on " + ", ".join(candidate.default_on) if candidate.default_on else "only by name"
        missing = candidate.unavailable()
        where += "" if missing is None else f"; not available: {missing}"
        lines.append(f" {mark} {candidate.name}: {candidate.summary} [{where}]")
    return "\n".join(lines)


def platform_of_trace() -> str:
    """The platform of what is being traced: a program can be compiled for devices that are not here."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def _implementations(operation: str) -> dict[str, Implementation]:
    if operation not in _operations:
        raise ChoiceError(f"operation={operation!r} does not exist; there are {', '.join(_operations)}")
    return _operations[operation]


def _obstacle(candidate: Implementation, operands: Mapping[str, Any] | None) -> str | None:
    """Why a candidate cannot serve."""
    missing = candidate.unavailable()
    return missing if missing is not None or operands is None else candidate.unsupported(**operands)


def _named(
    known: dict[str, Implementation], operation: str, name: str, source: str, operands: Mapping[str, Any] | None
) -> Implementation:
    if name not in known:
        raise ChoiceError(f"{source}={name!r} is not an implementation of {operation}; there are {', '.join(known)}")
    obstacle = _obstacle(known[name], operands)
    if obstacle is not None:
        raise ChoiceError(f"{source}={name!r} cannot compute this {operation}: {obstacle}")
    return known[name]
