"""GBNF, the grammars of llama.cpp (``root ::= ...``, also written EBNF), translated to Lark's notation.

GBNF is about characters: any division of a text among the rules counts. Lark's terminals are greedy instead. So every
terminal of the translation is a single character, for which there is no difference.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping

from jaxllm.structured.fixpoint import follows
from jaxllm.structured.problem import GrammarProblemError

_RULE = re.compile(r"([A-Za-z_][\w-]*)\s*::=")
_SPACE = re.compile(r"(?:\s|#[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_][\w-]*")
_REPEAT = re.compile(r"\{\s*(\d+)\s*(?:(,)\s*(\d*)\s*)?\}")
_TOKEN = re.compile(r"<(?:\[\d+\]|[^<>\s]+)>")
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "[": "[", "]": "]", "-": "-", "^": "^"}


def is_gbnf(text: str) -> bool:
    """Whether a grammar defines its rules as GBNF does."""
    return re.search(r"(?m)^\s*[A-Za-z_][\w-]*\s*::=", text) is not None


def gbnf_to_lark(text: str) -> str:
    """The grammar in Lark's notation, its rule ``root`` as ``start``.

    Raises ``GrammarProblemError`` for what is malformed, a rule that is missing or defined twice, and a ``root`` that
    no finite text satisfies.
    """
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise GrammarProblemError("the grammar has no rule named root")
    names = {name: "start" if name == "root" else f"rule_{index}" for index, name in enumerate(rules)}
    _check_finite(rules)
    return "".join(f"{names[name]}: {_written(body, names)}\n" for name, body in rules.items())


@dataclasses.dataclass(frozen=True)
class _Terminal:
    """One character or special token, as Lark writes it; or no text."""

    lark: str


@dataclasses.dataclass(frozen=True)
class _Reference:
    name: str
    at: int


@dataclasses.dataclass(frozen=True)
class _Sequence:
    items: tuple[_Node, ...]


@dataclasses.dataclass(frozen=True)
class _Choice:
    options: tuple[_Node, ...]


@dataclasses.dataclass(frozen=True)
class _Repeat:
    item: _Node
    low: int
    high: int | None


_Node = _Terminal | _Reference | _Sequence | _Choice | _Repeat
_EMPTY = _Terminal('""')


class _Parser:
    """Recursive descent over the text. A rule ends where the next begins, whatever the lines."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def rules(self) -> dict[str, _Node]:
        """The rules in their order."""
        rules: dict[str, _Node] = {}
        self._skip()
        while self._at < len(self._text):
            if (match := _RULE.match(self._text, self._at)) is None:
                raise self._problem("expected a rule, name ::= ...")
            if match[1] in rules:
                raise self._problem(f"the rule {match[1]} is defined twice")
            self._take(_RULE)
            rules[match[1]] = self._choice()
        self._check_references(rules)
        return rules

    def _check_references(self, rules: Mapping[str, _Node]) -> None:
        for body in rules.values():
            for node in _walk(body):
                if isinstance(node, _Reference) and node.name not in rules:
                    self._at = node.at
                    raise self._problem(f"there is no rule named {node.name}")

    def _choice(self) -> _Node:
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        items: list[_Node] = []
        while (item := self._item()) is not None:
            items.append(self._repeated(item))
        return _Sequence(tuple(items)) if items else _EMPTY

    def _item(self) -> _Node | None:
        start = self._at
        if _RULE.match(self._text, self._at):
            return None
        if self._take("("):
            inner = self._choice()
            if not self._take(")"):
                raise self._problem("expected )")
            return inner
        if self._take('"', skip=False):
            return self._literal()
        if self._take("[", skip=False):
            return self._character_class()
        if self._take("."):
            return _Terminal("/(?s:.)/")
        if (match := self._take(_TOKEN)) is not None:
            return _Terminal(match[0])
        if (match := self._take(_NAME)) is not None:
            return _Reference(match[0], start)
        if self._at < len(self._text) and self._text[self._at] not in "|)":
            raise self._problem(f"{self._text[self._at]!r} is not expected here")
        return None

    def _repeated(self, item: _Node) -> _Node:
        while True:
            if self._take("*"):
                item = _Repeat(item, 0, None)
            elif self._take("+"):
                item = _Repeat(item, 1, None)
            elif self._take("?"):
                item = _Repeat(item, 0, 1)
            elif (match := self._take(_REPEAT)) is not None:
                low = int(match[1])
                high = low if match[2] is None else int(match[3]) if match[3] else None
                if high is not None and high < low:
                    raise self._problem(f"{match[0]} repeats fewer times than its least")
                item = _Repeat(item, low, high)
            else:
                return item

    def _literal(self) -> _Node:
        characters: list[str] = []
        while not self._text.startswith('"', self._at):
            characters.append(self._character('"'))
        self._take('"')
        items = tuple(_Terminal(json.dumps(character, ensure_ascii=False)) for character in characters)
        return _Sequence(items) if items else _EMPTY

    def _character_class(self) -> _Node:
        negated = self._take("^", skip=False)
        ranges: list[str] = []
        while not self._text.startswith("]", self._at):
            low = high = self._character("]")
            if self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._character("]")
            if high < low:
                raise self._problem(f"the range from {low!r} to {high!r} is empty")
            ranges.append(rf"\x{{{ord(low):x}}}-\x{{{ord(high):x}}}")
        self._take("]")
        if not ranges:
            raise self._problem("a character class without characters")
        return _Terminal(f"/[{'^' if negated else ''}{''.join(ranges)}]/")

    def _character(self, end: str) -> str:
        """The next character of a literal or class, its escape resolved."""
        if self._at >= len(self._text) or self._text[self._at] == "\n":
            raise self._problem(f"expected {end} before the end of the line")
        if self._text[self._at] != "\\":
            self._at += 1
            return self._text[self._at - 1]
        match = _ESCAPE.match(self._text, self._at)
        if match is None or (match[4] is not None and match[4] not in _LETTERS):
            raise self._problem("an unknown escape")
        self._at = match.end()
        if match[4] is not None:
            return _LETTERS[match[4]]
        code = int(match[1] or match[2] or match[3], 16)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise self._problem(f"U+{code:X} is not a character")
        return chr(code)

    def _take(self, what: str | re.Pattern[str], *, skip: bool = True) -> re.Match[str] | None:
        """Step over what comes next, and the space and comments behind it, if it is this."""
        match = re.compile(re.escape(what) if isinstance(what, str) else what).match(self._text, self._at)
        if match is not None:
            self._at = match.end()
            if skip:
                self._skip()
        return match

    def _skip(self) -> None:
        space = _SPACE.match(self._text, self._at)
        self._at = self._at if space is None else space.end()

    def _problem(self, what: str) -> GrammarProblemError:
        line = self._text.count("\n", 0, self._at) + 1
        column = self._at - self._text.rfind("\n", 0, self._at)
        return GrammarProblemError(f"line {line}, column {column}: {what}")


def _walk(node: _Node) -> Iterator[_Node]:
    yield node
    for child in _children(node):
        yield from _walk(child)


def _children(node: _Node) -> tuple[_Node, ...]:
    if isinstance(node, _Sequence):
        return node.items
    if isinstance(node, _Choice):
        return node.options
    return (node.item,) if isinstance(node, _Repeat) else ()


def _written(node: _Node, names: Mapping[str, str]) -> str:
    """The node in Lark's notation."""
    if isinstance(node, _Terminal):
        return node.lark
    if isinstance(node, _Reference):
        return names[node.name]
    if isinstance(node, _Sequence):
        return " ".join(_grouped(item, names) if isinstance(item, _Choice) else _written(item, names)
                        for item in node.items)
    if isinstance(node, _Choice):
        return " | ".join(_written(option, names) for option in node.options)
    many = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.low, node.high))
    return _grouped(node.item, names) + (many or f"{{{node.low},{'' if node.high is None else node.high}}}")


def _grouped(node: _Node, names: Mapping[str, str]) -> str:
    return f"({_written(node, names)})"


def _check_finite(rules: Mapping[str, _Node]) -> None:
    """Raise if ``root`` has no finite sentence."""
    if not follows("root", lambda name, known: _is_finite(rules[name], known)):
        raise GrammarProblemError("no finite text satisfies the grammar: root requires itself inside itself")


def _is_finite(node: _Node, known: Callable[[str], bool]) -> bool:
    if isinstance(node, _Reference):
        return known(node.name)
    if isinstance(node, _Repeat) and node.low == 0:
        return True
    return (any if isinstance(node, _Choice) else all)(_is_finite(child, known) for child in _children(node))
