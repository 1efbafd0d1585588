"""Whether anything finite satisfies a JSON schema that refers to itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxllm.structured.tagged import resolve

_NESTED = {"array", "object"}


def has_finite_instance(root: Mapping[str, Any]) -> bool:
    """``False`` only if every text that satisfies the schema would be infinite: it requires itself inside itself.

    References are first taken to have no finite instance, then those that must have one are found until no more are.
    """
    finite: dict[str, bool] = {}
    while True:
        before = dict(finite)
        result = _finite(root, root, finite)
        for reference in list(finite):
            target = resolve(reference, root)
            finite[reference] = target is None or _finite(target, root, finite)
        if finite == before:
            return result


def _finite(schema: Any, root: Mapping[str, Any], finite: dict[str, bool]) -> bool:
    """Whether a finite instance follows from what is known of the references; notes those it meets in ``finite``."""
    if not isinstance(schema, dict):
        return schema is not False
    parts = []
    if isinstance(schema.get("$ref"), str):
        parts.append(finite.setdefault(schema["$ref"], False))
    for key, combine in (("anyOf", any), ("oneOf", any), ("allOf", all)):
        if isinstance(schema.get(key), list):
            parts.append(combine(_finite(option, root, finite) for option in schema[key]))
    return all(parts) and _finite_alone(schema, root, finite)


def _finite_alone(schema: dict[str, Any], root: Mapping[str, Any], finite: dict[str, bool]) -> bool:
    """The same for the keywords about the value itself."""
    if "const" in schema or "enum" in schema:
        return True
    types = schema.get("type")
    allowed = {types} if isinstance(types, str) else set(map(str, types)) if isinstance(types, list) else set()
    if not allowed or allowed - _NESTED:
        return True
    return ("object" in allowed and all(_finite(child, root, finite) for child in _required_values(schema))) or (
        "array" in allowed and all(_finite(child, root, finite) for child in _required_items(schema)))


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
