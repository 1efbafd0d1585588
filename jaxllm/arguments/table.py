"""``ArgumentTable``: what becomes of vLLM's arguments of a function, for its errors and for the documentation."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from jaxllm.errors import ParameterError

REQUIRED = ...
"""In place of a default, for an argument that must be given."""

_T = TypeVar("_T")
_PLAIN = (bool, int, float, str, tuple, list, dict, set, type(None))


@dataclasses.dataclass(frozen=True)
class Argument:
    """One of vLLM's arguments.

    default: vLLM's.
    accepted: ``None`` where jaxllm has the argument; else the values that ask for nothing jaxllm does not do anyway,
        vLLM's default among them. They are accepted and change nothing; all others are refused.
    note: what it does here that it does not do there, or, where it is refused, what to do instead.
    """

    name: str
    default: Any
    accepted: tuple[Any, ...] | None
    note: str

    @property
    def honoured(self) -> bool:
        """Whether jaxllm has the argument."""
        return self.accepted is None

    def accepts(self, value: object) -> bool:
        """Whether the value of an argument that jaxllm does not have can be passed over."""
        return isinstance(value, _PLAIN) and any(_equal(value, known) for known in self.accepted or ())


class ArgumentTable:
    """vLLM's arguments of one function or class.

    owner: what an error calls it. own: names that jaxllm alone has, to be suggested when a name is misspelt.
    """

    def __init__(self, owner: str, arguments: Iterable[Argument], own: Iterable[str] = ()) -> None:
        self.owner = owner
        self.arguments = tuple(arguments)
        self._by_name = {argument.name: argument for argument in self.arguments}
        self.own = tuple(own)

    def __getitem__(self, name: str) -> Argument:
        return self._by_name[name]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def check(self, given: Mapping[str, object]) -> None:
        """Raise ``ParameterError`` for the first of these arguments, which jaxllm does not have, that matters.

        The error names the replacement, or for a name that vLLM does not have either, the closest one.
        """
        for name, value in given.items():
            argument = self._by_name.get(name)
            if argument is None or argument.honoured:
                raise ParameterError(name, value, f"{self.owner} has no such argument{self._suggestion(name)}")
            if not argument.accepts(value):
                raise ParameterError(name, value, argument.note)

    def _suggestion(self, name: str) -> str:
        known = [argument.name for argument in self.arguments if argument.honoured] + list(self.own)
        close = difflib.get_close_matches(name, known, 1) or difflib.get_close_matches(name, self._by_name, 1)
        return f"; did you mean {close[0]}?" if close else ""


def honoured(**notes: tuple[Any, str]) -> Iterator[Argument]:
    """Arguments that jaxllm has: ``name=(vLLM's default, note)``."""
    for name, (default, note) in notes.items():
        yield Argument(name, default, None, note)


def refused(note: str, *also: Any, **defaults: Any) -> Iterator[Argument]:
    """Arguments that jaxllm does not have, with one replacement: ``name=vLLM's default``.

    also: further values that are accepted.
    """
    for name, default in defaults.items():
        yield Argument(name, default, (default, *also), note)


def understands(table: ArgumentTable) -> Callable[[type[_T]], type[_T]]:
    """Class decorator: the dataclass's constructor goes by the table for keywords that are no fields."""

    def decorate(cls: type[_T]) -> type[_T]:
        construct = cls.__init__
        fields = frozenset(inspect.signature(construct).parameters)

        @functools.wraps(construct)
        def __init__(self: Any, *positional: Any, **given: Any) -> None:
            others = given.keys() - fields
            if others:
                table.check({name: given[name] for name in given if name in others})
                given = {name: value for name, value in given.items() if name not in others}
            construct(self, *positional, **given)

        cls.__init__ = __init__  # type: ignore[method-assign]
        return cls

    return decorate


def _equal(value: Any, known: Any) -> bool:
    # True == 1, which a number of devices is not.
    if isinstance(value, bool) != isinstance(known, bool):
        return False
    try:
        return bool(value == known)
    except Exception:  # a container may hold anything, such as arrays
        return False
