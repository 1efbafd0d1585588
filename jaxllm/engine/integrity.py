"""What ``check_integrity`` raises."""

from __future__ import annotations


class IntegrityError(RuntimeError):
    """An invariant of the engine's bookkeeping does not hold: a bug in jaxllm, never a user's mistake."""


def require(holds: bool, invariant: str, about: object = None) -> None:
    """Raise ``IntegrityError``, saying what was expected and of what, unless the invariant holds."""
    if not holds:
        raise IntegrityError(invariant if about is None else f"{about}: {invariant}")
