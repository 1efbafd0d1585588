"""Tagged unions in JSON schemas: options that exclude each other by the value of a property."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any


def tags_differ(options: Sequence[Any], root: Mapping[str, Any]) -> bool:
    """Whether every option is an object that requires some property, the same in all, with values that no other has.

    ``$ref``s into the document ``root`` are followed. Options that differ otherwise are not recognized.
    """
    described = [_tags(option, root) for option in options]
    shared = set.intersection(*(set(tags) for tags in described)) if described else set()
    return any(_disjoint([tags[name] for tags in described]) for name in shared)


def _disjoint(sets: Sequence[frozenset[str]]) -> bool:
    return len(frozenset().union(*sets)) == sum(map(len, sets))


def _tags(option: Any, root: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """The required properties of an option that have a fixed set of values, each value as JSON text."""
    parts = list(_parts(option, root))
    if not any(part.get("type") == "object" for part in parts):
        return {}
    required = {name for part in parts if isinstance(part.get("required"), list) for name in map(str, part["required"])}
    tags: dict[str, frozenset[str]] = {}
    for part in parts:
        properties = part["properties"] if isinstance(part.get("properties"), dict) else {}
        for name in required.intersection(properties):
            if (values := _values(properties[name])) is not None:
                tags[name] = values
    return tags


def _values(schema: Any) -> frozenset[str] | None:
    """The values of a ``const`` or ``enum`` of texts; others could be equal without looking it (1 and 1.0)."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return None
    return frozenset(map(json.dumps, values))


def _parts(option: Any, root: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An option and what it refers to: all of them restrict it."""
    parts: list[dict[str, Any]] = []
    while isinstance(option, dict) and option not in parts:
        parts.append(option)
        option = resolve(option.get("$ref"), root)
    return parts


def resolve(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a ``$ref`` within the document points to (RFC 6901), ``None`` for any other."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    found: Any = root
    for part in urllib.parse.unquote(reference).split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and part in found:
            found = found[part]
        elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found
