"""The options that say what text is allowed, and the files that they may name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from jaxllm.cli.options import in_panel
from jaxllm.errors import ParameterError
from jaxllm.structured.params import StructuredOutputsParams

_structure = in_panel("Structured outputs")


@dataclasses.dataclass(frozen=True)
class StructureOptions:
    """What every text has to be; at most one is given. See ``StructuredOutputsParams``."""

    json_schema: Annotated[str | None, _structure(
        "--json-schema", "JSON that satisfies this schema: a file, or the schema itself, which begins with {.",
        metavar="FILE|JSON")] = None
    regex: Annotated[str | None, _structure(
        "--regex", "What this regular expression matches as a whole.", metavar="REGEX")] = None
    choice: Annotated[list[str] | None, _structure(
        "--choice", "One of these texts; repeated for each.", metavar="TEXT")] = None
    grammar: Annotated[Path | None, _structure(
        "--grammar", "What this grammar derives: a file in Lark's notation, or in GBNF.", metavar="FILE")] = None

    def params(self) -> StructuredOutputsParams | None:
        """What the options ask for, ``None`` if nothing; wrong usage if it is several things, or malformed."""
        flags = {"json_schema": "--json-schema", "regex": "--regex", "choice": "--choice", "grammar": "--grammar"}
        given = [flag for name, flag in flags.items() if getattr(self, name) not in (None, [])]
        if not given:
            return None
        if len(given) > 1:
            raise typer.BadParameter(f"not together with {' and '.join(given[1:])}", param_hint=given[0])
        try:
            return StructuredOutputsParams(
                json=None if self.json_schema is None else _schema(self.json_schema), regex=self.regex,
                choice=self.choice or None, grammar=None if self.grammar is None else _read(self.grammar, given[0]))
        except ParameterError as error:
            raise typer.BadParameter(str(error), param_hint=given[0]) from None


def _schema(text: str) -> str:
    return text if text.lstrip().startswith("{") else _read(Path(text), "--json-schema")


def _read(file: Path, flag: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{str(file)!r} cannot be read: {error}", param_hint=flag) from None
