"""How deep grammars may go.

The library recurses from rule to rule, and a native stack that overflows ends the process.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

from jaxllm.structured.problem import GrammarProblemError

MAX_RULES = 10_000
"""The most rules of a grammar, and references of a schema: chains of so many fit ``_STACK_BYTES``."""
_STACK_BYTES = 1 << 29  # of addresses: memory is taken as far as it is used
_RULE = re.compile(r"(?m)^[ \t]*[!?]?[A-Za-z_][\w.-]*[^:\n\"/]*:")

_stack_size_lock = threading.Lock()


def check_number_of_rules(grammar: str) -> None:
    """Raise ``GrammarProblemError`` for a grammar, in Lark's notation or GBNF, of more than ``MAX_RULES`` rules."""
    _check("rules", sum(1 for _ in _RULE.finditer(grammar)) + grammar.count('"$ref"'))


def check_number_of_references(schema: Any) -> None:
    """Raise ``GrammarProblemError`` for a JSON schema of more than ``MAX_RULES`` references."""
    waiting, count = [schema], 0
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            count += "$ref" in value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    _check("references", count)


def _check(what: str, count: int) -> None:
    if count > MAX_RULES:
        raise GrammarProblemError(f"it has {count} {what}, and at most {MAX_RULES} are supported")


def on_deep_stack[T](call: Callable[[], T]) -> T:
    """What ``call`` returns or raises, from a thread with room for the deepest grammar."""
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    with _stack_size_lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=work, name="grammar")
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
