"""Grammars in Lark's notation, checked for what the library would not honour."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from jaxllm.structured.problem import GrammarProblemError

# Texts, regular expressions and comments, in which nothing is looked for; then what is.
_PART = re.compile(
    r'''"(?:\\.|[^"\\\n])*"|//[^\n]*|\#[^\n]*|/(?:\\.|[^/\\\n])+/'''
    r'''|(?P<json>%json\s*)|(?P<options>%llguidance\s*)|(?m:^)[ \t]*[\w.!?-]+\s*\[(?P<attributes>[^\]\n]*)\]\s*:'''
)
_DISHONOURED = {
    "stop": "hiding the text that stops a rule needs tokens to be taken back; suffix or lazy do not hide it",
    "temperature": "a grammar does not change the sampling; set SamplingParams.temperature",
}


def checked_lark(text: str, rewritten_schema: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """The grammar, with every schema inside it (``%json {...}``) rewritten.

    Raises ``GrammarProblemError`` for rule attributes and options that would be ignored or break the text.
    """
    parts: list[str] = []
    done = 0
    for match in _PART.finditer(text):
        if match.start() < done:
            continue  # inside a schema
        if match["attributes"] is not None:
            _check_attributes(match["attributes"])
        if match["json"] is None and match["options"] is None:
            continue
        value, end = _value_after(match)
        if match["options"] is not None and isinstance(value, dict) and value.get("allow_invalid_utf8"):
            raise GrammarProblemError("the option allow_invalid_utf8 is not supported: the output would not be text")
        if match["json"] is not None and isinstance(value, dict):
            parts += [text[done:match.start()], "%json ", json.dumps(rewritten_schema(value), ensure_ascii=False)]
            done = end
    return "".join([*parts, text[done:]])


def _check_attributes(attributes: str) -> None:
    for name in re.findall(r"(?:^|,)\s*([\w-]+)", re.sub(r'"(?:\\.|[^"\\])*"', '""', attributes)):
        if name in _DISHONOURED:
            raise GrammarProblemError(f"the rule attribute {name} is not supported: {_DISHONOURED[name]}")


def _value_after(directive: re.Match[str]) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(directive.string, directive.end())
    except (ValueError, RecursionError) as error:
        raise GrammarProblemError(f"{directive[0].strip()} is followed by JSON text: {error}") from None
