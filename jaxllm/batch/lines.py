"""Lines of a request file: read one by one, identified by their ids, decoded as JSON objects."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Generator
from typing import Any

from jaxllm.errors import ParameterError

_BOM = b"\xef\xbb\xbf"


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A line of a file that is not blank: its number, from 1, and its bytes without white space around them."""

    number: int
    content: bytes

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that tell its content from others."""
        return hashlib.blake2b(self.content, digest_size=8).hexdigest()


def read_lines(path: str | os.PathLike[str]) -> Generator[Line]:
    """The lines of a file, from disk as they are asked for."""
    with open(path, "rb") as file:
        for number, content in enumerate(file, start=1):
            stripped = (content.removeprefix(_BOM) if number == 1 else content).strip()
            if stripped:
                yield Line(number, stripped)


def decode(content: bytes) -> dict[str, Any]:
    """The JSON object that a line holds; ``ParameterError`` for anything else."""
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_object, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ParameterError("line", content, f"text in UTF-8 ({error.reason} at byte {error.start})") from None
    except ValueError as error:
        raise ParameterError("line", _text(content), f"a JSON object: {error}") from None
    except RecursionError:
        raise ParameterError("line", _text(content), "a JSON object, not nested as deeply") from None
    if not isinstance(value, dict):
        raise ParameterError("line", value, "a JSON object")
    return value


def custom_id(fields: dict[str, Any]) -> str | None:
    """A line's own id, if it has one; ``ParameterError`` for one that is none."""
    found = fields.get("custom_id")
    if found is None:
        return None
    if not isinstance(found, str) or not found:
        raise ParameterError("custom_id", found, "a string that is not empty, or left out")
    return found


def own_id(line: Line) -> str | None:
    """A line's own id, ``None`` where it has none that can be read."""
    try:
        return custom_id(decode(line.content))
    except ParameterError:
        return None


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise ValueError(f"it has the key {twice!r} twice")
    return result


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
