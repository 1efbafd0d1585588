"""Writes the tables of docs/coming-from-vllm.md: ``python -m jaxllm.arguments --write docs/coming-from-vllm.md``."""

from __future__ import annotations

import argparse
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxllm.arguments import (
    BEAM_SEARCH_ARGUMENTS,
    BEAM_SEARCH_FIELDS,
    CHAT_ARGUMENTS,
    ENGINE_ARGUMENTS,
    GENERATE_ARGUMENTS,
    PROMPT_KEYS,
    SAMPLING_FIELDS,
    STRUCTURED_FIELDS,
)
from jaxllm.arguments.table import REQUIRED, ArgumentTable
from jaxllm.beam_search import BeamSearchParams
from jaxllm.llm import LLM
from jaxllm.sampling_params import SamplingParams
from jaxllm.structured.params import StructuredOutputsParams

_TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with its tables renewed: what stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``."""
    return _TABLE.sub(lambda match: f"{match[1]}{_rendered(match[2])}{match[3]}", page)


def _rendered(name: str) -> str:
    return "".join(f"{line}\n" for line in _TABLES[name]())


def _known(table: ArgumentTable, function: Callable[..., Any], skip: Iterable[str] = ()) -> Iterator[str]:
    yield from _header("argument", "default in vLLM", "default here", "what is different")
    for name, default in _defaults(function).items():
        if name not in skip:
            theirs, note = _theirs(table, name)
            yield _row(f"`{name}`", theirs, _code(default), note)


def _fields(table: ArgumentTable, owner: type) -> Iterator[str]:
    yield from _header("field", "default in vLLM", "default here", "meaning; *what is different*")
    meanings = described(owner)
    for name, default in _defaults(owner).items():
        theirs, note = _theirs(table, name)
        difference = f" *{note}*" if note else ""
        yield _row(f"`{name}`", theirs, _code(default), meanings[name].replace("``", "`") + difference)


def _unknown(table: ArgumentTable) -> Iterator[str]:
    yield from _header("vLLM's arguments, at its defaults, which are accepted", "instead of other values")
    refused = [argument for argument in table.arguments if not argument.honoured]
    for note, group in itertools.groupby(refused, key=lambda argument: argument.note):
        names = ", ".join(f"`{argument.name}={argument.default!r}`" for argument in group)
        yield _row(names, note)


def described(documented: Any) -> dict[str, str]:
    """What a docstring says of each parameter: paragraphs ``name: meaning``, continued on lines indented further."""
    found: dict[str, str] = {}
    for paragraph in re.split(r"\n(?=\S)", inspect.getdoc(documented) or ""):
        match = re.match(r"(\w+): (.*)", paragraph.partition("\n\n")[0], re.DOTALL)
        if match is not None:
            found[match[1]] = " ".join(match[2].split())
    return found


def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.name != "self" and each.kind is not each.VAR_KEYWORD}


def _theirs(table: ArgumentTable, name: str) -> tuple[str, str]:
    """vLLM's default, and the note."""
    if name not in table:
        return "not there", ""
    return _code(table[name].default), table[name].note


def _header(*columns: str) -> Iterator[str]:
    yield _row(*columns)
    yield _row(*("---" for _ in columns))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _code(value: Any) -> str:
    return "required" if value in (inspect.Parameter.empty, REQUIRED) else f"`{value!r}`"


_TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "engine": lambda: _known(ENGINE_ARGUMENTS, LLM.__init__),
    "engine_refused": lambda: _unknown(ENGINE_ARGUMENTS),
    "generate": lambda: _known(GENERATE_ARGUMENTS, LLM.generate),
    "generate_refused": lambda: _unknown(GENERATE_ARGUMENTS),
    "prompt_refused": lambda: _unknown(PROMPT_KEYS),
    "chat": lambda: _known(CHAT_ARGUMENTS, LLM.chat),
    "chat_refused": lambda: _unknown(CHAT_ARGUMENTS),
    "beam_search": lambda: _known(BEAM_SEARCH_ARGUMENTS, LLM.beam_search),
    "beam_search_refused": lambda: _unknown(BEAM_SEARCH_ARGUMENTS),
    "sampling": lambda: _fields(SAMPLING_FIELDS, SamplingParams),
    "sampling_refused": lambda: _unknown(SAMPLING_FIELDS),
    "structured": lambda: _fields(STRUCTURED_FIELDS, StructuredOutputsParams),
    "structured_refused": lambda: _unknown(STRUCTURED_FIELDS),
    "beams": lambda: _fields(BEAM_SEARCH_FIELDS, BeamSearchParams),
}


def main() -> None:
    """Renew the tables of the page that is named."""
    parser = argparse.ArgumentParser(prog="python -m jaxllm.arguments", description=__doc__)
    parser.add_argument("--write", required=True, type=Path, metavar="PAGE", help="the page to renew")
    page = parser.parse_args().write
    page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
