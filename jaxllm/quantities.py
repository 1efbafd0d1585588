"""Numbers of bytes and of tokens, as integers or as the short text that people write."""

from __future__ import annotations

import operator
import re

from jaxllm.errors import ParameterError

_LETTERS = "KMGT"
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)", re.IGNORECASE)


def parse_bytes(name: str, value: object, *, low: int = 1) -> int:
    """A number of bytes: an integer, or text such as "1048576", "512M" or "1.5GiB".

    The units are powers of 1024, in any letter case. name: what a ``ParameterError`` calls the value.
    """
    allowed = f"bytes: an integer >= {low}, or text such as '512M' or '1.5G' (powers of 1024)"
    return _at_least(name, value, _integer(value, _BYTES, thousand=1024), low, allowed)


def parse_gibibytes(name: str, value: object) -> int:
    """A number of bytes from a number of GiB, or from text as in ``parse_bytes``, where a plain number is GiB too."""
    allowed = "a number of GiB >= 0, or text with a unit such as '512M' or '16G'"
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and not text.replace(".", "", 1).isdecimal():
        return _at_least(name, value, _integer(text, _BYTES, thousand=1024), 0, allowed)
    try:
        number = int(float(text) * 2**30)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(name, value, allowed) from None
    return _at_least(name, value, None if isinstance(value, bool) else number, 0, allowed)


def parse_count(name: str, value: object, *, low: int = 1) -> int:
    """A number of tokens: an integer, or text such as "8192", "8k" (8,000) or "8K" (8,192), as in vLLM."""
    allowed = f"an integer >= {low}, or text such as '8192', '8k' (8,000) or '8K' (8,192)"
    return _at_least(name, value, _integer(value, _COUNT, thousand=1000), low, allowed)


def _integer(value: object, pattern: re.Pattern[str], *, thousand: int) -> int | None:
    """The number, or ``None`` for what is none. thousand: what a small letter "k" stands for."""
    try:
        if not isinstance(value, str):
            return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
        match = pattern.fullmatch(value.strip())
        if match is None:
            return None
        number, unit = float(match[1]), match[2]
        if not unit:
            return int(number) if number.is_integer() else None
        base = 1024 if unit.isupper() else thousand
        return int(number * base ** (1 + _LETTERS.index(unit.upper())))
    except (TypeError, OverflowError):
        return None


def _at_least(name: str, value: object, number: int | None, low: int, allowed: str) -> int:
    if number is None or number < low:
        raise ParameterError(name, value, allowed)
    return number
