"""Whether anything finite satisfies a JSON schema that refers to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxllm.structured.fixpoint import follows
from jaxllm.structured.tagged import resolve

_ROOT = "#"

_NESTED = {"array", "object"}


def has_finite_instance(root: Mapping[str, Any]) -> bool:
    """``False`` only if every text that satisfies the schema would be infinite: it requires itself inside itself."""
    def holds(reference: str, known: Callable[[str], bool]) -> bool:
        target = root if reference == _ROOT else resolve(reference, root)
        return target is None or _finite(target, known)

    return follows(_ROOT, holds)


def _finite(schema: Any, known: Callable[[str], bool]) -> bool:
    """Whether a finite instance follows from what is known of the references."""
    if not isinstance(schema, dict):
        return schema is not False
    parts = []
    if isinstance(schema.get("$ref"), str):
        parts.append(known(schema["$ref"]))
    for key, combine in (("anyOf", any), ("oneOf", any), ("allOf", all)):
        if isinstance(schema.get(key), list):
            parts.append(combine(_finite(option, known) for option in schema[key]))
    return all(parts) and _finite_alone(schema, known)


def _finite_alone(schema: dict[str, Any], known: Callable[[str], bool]) -> bool:
    """The same for the keywords about the value itself."""
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type")
    allowed = {types} if isinstance(types, str) else set(map(str, types)) if isinstance(types, list) else set()
    if not allowed or allowed - _NESTED:
        return True
    return ("object" in allowed and all(_finite(child, known) for child in _required_values(schema))) or (
        "array" in allowed and all(_finite(child, known) for child in _required_items(schema)))


def _required_values(schema: dict[str, Any]) -> list[Any]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(required, list):
        return []
    known = properties if isinstance(properties, dict) else {}
    return [known.get(name, True) for name in required if isinstance(name, str)]


def _required_items(schema: dict[str, Any]) -> list[Any]:
    needed, first, rest = schema.get("minItems", 0), schema.get("prefixItems", []), schema.get("items", True)
    if isinstance(rest, list):
        first, rest = rest, schema.get("additionalItems", True)
    if not isinstance(needed, int) or not isinstance(first, list):
        return []
    return [*first[:needed], *([rest] if needed > len(first) else [])]
