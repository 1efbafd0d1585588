"""Checks of parameter values: each raises ``ParameterError`` with the name, the value and what is allowed."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence

from jaxllm.errors import ParameterError
from jaxllm.frozen import FrozenMapping

_GREATEST = (2.0 - 2.0**-23) * 2.0**127  # of float32


def check_integer(name: str, value: object, low: int | None, high: int | None = None) -> int:
    """``value`` is an integer, NumPy's included, in ``[low, high]``; returns it as Python's, which never overflows."""
    allowed = "an integer" + (f" >= {low}" if low is not None else "") + (f" and <= {high}" if high is not None else "")
    number = as_integer(value)
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        raise ParameterError(name, value, allowed)
    return number


def as_integer(value: object) -> int | None:
    """The number that an integer, NumPy's included, stands for; ``None`` for anything else, True and False too."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_real(name: str, value: object, low: float, high: float | None, *, open_low: bool = False) -> float:
    """``value`` is a finite number in ``[low, high]``, or ``(low, high]``; returns it as Python's."""
    bounds = f"a finite number {'>' if open_low else '>='} {low}" + (f" and <= {high}" if high is not None else "")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(name, value, bounds) from None
    too_low = number <= low if open_low else number < low
    if isinstance(value, (bool, str)) or not math.isfinite(number) or too_low or (high is not None and number > high):
        raise ParameterError(name, value, bounds)
    return number


def one_for_each[Kind](name: str, params: object, kind: type[Kind], count: int, allowed: str) -> list[Kind]:
    """Parameters for each of ``count`` prompts, from one for all or a list with one for each."""
    if isinstance(params, kind):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(each, kind) for each in params):
        raise ParameterError(name, params, allowed)
    if len(params) != count:
        raise ParameterError(name, f"a list of {len(params)}", f"one for each of the {count} prompts")
    return list(params)


def check_bool(name: str, value: object) -> None:
    """``value`` is True or False."""
    if not isinstance(value, bool):
        raise ParameterError(name, value, "True or False")


def checked_strings(name: str, value: object) -> tuple[str, ...] | None:
    """``None``, or one non-empty string or a list of such, as a tuple."""
    if value is None:
        return None
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or not all(isinstance(s, str) and s for s in strings):
        raise ParameterError(name, value, "a non-empty string or a list of non-empty strings")
    for string in strings:
        check_unicode(name, string)
    return tuple(strings)


def check_unicode(name: str, text: str) -> None:
    """``text`` can be encoded, as lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(name, text, f"valid Unicode, without lone surrogates ({error.reason})") from None


def checked_token_ids(name: str, ids: object) -> tuple[int, ...] | None:
    """``None``, or integers ``>= 0``, as a tuple."""
    if ids is None:
        return None
    if isinstance(ids, (str, bytes, Mapping)) or not hasattr(ids, "__iter__"):
        raise ParameterError(name, ids, "a list of token ids")
    found = list(ids)
    for token in found:
        if (number := as_integer(token)) is None or number < 0:
            raise ParameterError(name, token, "token ids are integers >= 0")
    return tuple(operator.index(token) for token in found)


def checked_logit_bias(bias: object) -> Mapping[int, float] | None:
    """``None``, or finite numbers by token id; ids may be decimal strings."""
    if bias is None:
        return None
    if not isinstance(bias, Mapping):
        raise ParameterError("logit_bias", bias, "a mapping from token id to number")
    result: dict[int, float] = {}
    for key, value in bias.items():
        if isinstance(key, str) and key.isdecimal():
            key = int(key)
        if (token := as_integer(key)) is None or token < 0:
            raise ParameterError("logit_bias", key, "keys are token ids: integers >= 0 or their decimal strings")
        if token in result:
            raise ParameterError("logit_bias", bias, f"token id {key} once")
        result[token] = check_real(f"logit_bias[{key}]", value, -math.inf, None)
    return FrozenMapping(result)


def checked_processors(value: object, most_arguments: int) -> Mapping[str, tuple[float, ...]] | None:
    """``None``, or the arguments of logits processors by name, from a name, a list of names or such a mapping."""
    if value is None:
        return None
    allowed = f"a name, a list of names, or a mapping from name to at most {most_arguments} finite numbers"
    if isinstance(value, Mapping):
        named = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        named = [(name, ()) for name in value]
    else:
        named = [(value, ())]
    result: dict[str, tuple[float, ...]] = {}
    for name, arguments in named:
        if not isinstance(name, str):
            raise ParameterError("logits_processors", value, allowed)
        several = hasattr(arguments, "__getitem__") and getattr(arguments, "ndim", 1) > 0
        numbers = list(arguments) if several else [arguments]
        if isinstance(arguments, str | bytes | Mapping) or len(numbers) > most_arguments:
            raise ParameterError("logits_processors", value, allowed)
        result[name] = tuple(
            check_real(f"logits_processors[{name!r}]", number, -_GREATEST, _GREATEST) for number in numbers)
    return FrozenMapping(result)


def refuse_given(allowed: str, **values: object) -> None:
    """Each of the values is ``None``."""
    for name, value in values.items():
        if value is not None:
            raise ParameterError(name, value, allowed)
