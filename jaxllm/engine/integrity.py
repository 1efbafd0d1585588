"""What ``check_integrity`` raises."""

from __future__ import annotations


class IntegrityError(RuntimeError):
    """An invariant of the engine's bookkeeping does not hold: a bug in jaxllm, never a user's mistake."""


def require(holds: bool, message: str) -> None:
    """Raise ``IntegrityError`` with the message unless the invariant holds."""
    if not holds:
        raise IntegrityError(message)
