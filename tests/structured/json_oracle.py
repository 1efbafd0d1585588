"""A small JSON schema validator, written from the standard (draft 2020-12), to judge generated texts by."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction

_TYPES = {"null": type(None), "boolean": bool, "string": str, "array": list, "object": dict}


def parse(text):
    """JSON without NaN, its numbers exact unless they have exponents, which may be of any size."""
    return json.loads(text, parse_constant=_refuse, parse_float=lambda number: (
        float(number) if "e" in number.lower() else Decimal(number)))


def _refuse(name):
    raise ValueError(f"{name} is not JSON")


def is_valid(value, schema, root=None):
    """Whether a decoded value satisfies a schema."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    return all(_CHECKS[key](value, schema, root) for key in schema if key in _CHECKS)


def _is_type(value, name):
    if name in ("number", "integer"):
        number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        return number and (name == "number" or value % 1 == 0)
    return isinstance(value, _TYPES[name])


def _type(value, schema, root):
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return any(_is_type(value, name) for name in names)


def _number(check):
    return lambda value, schema, root: not _is_type(value, "number") or check(value, schema)


def _of(kind, check):
    return lambda value, schema, root: not isinstance(value, kind) or check(value, schema, root)


def _items(value, schema, root):
    return all(is_valid(item, schema["items"], root) for item in value[len(schema.get("prefixItems", ())):])


def _extra(value, schema):
    patterns = schema.get("patternProperties", {})
    return [key for key in value if key not in schema.get("properties", {})
            and not any(re.search(pattern, key) for pattern in patterns)]


def _reference(value, schema, root):
    target = root
    for part in schema["$ref"].split("/")[1:]:
        target = target[part]
    return is_valid(value, target, root)


def _equal(one, other):
    return json.dumps(one, sort_keys=True, default=float) == json.dumps(other, sort_keys=True, default=float)


_CHECKS = {
    "type": _type,
    "enum": lambda value, schema, root: any(_equal(value, each) for each in schema["enum"]),
    "const": lambda value, schema, root: _equal(value, schema["const"]),
    "minimum": _number(lambda value, schema: value >= schema["minimum"]),
    "maximum": _number(lambda value, schema: value <= schema["maximum"]),
    "exclusiveMinimum": _number(lambda value, schema: value > schema["exclusiveMinimum"]),
    "exclusiveMaximum": _number(lambda value, schema: value < schema["exclusiveMaximum"]),
    "multipleOf": _number(lambda value, schema: Fraction(value) % Fraction(str(schema["multipleOf"])) == 0),
    "minLength": _of(str, lambda value, schema, root: len(value) >= schema["minLength"]),
    "maxLength": _of(str, lambda value, schema, root: len(value) <= schema["maxLength"]),
    "pattern": _of(str, lambda value, schema, root: re.search(schema["pattern"], value) is not None),
    "minItems": _of(list, lambda value, schema, root: len(value) >= schema["minItems"]),
    "maxItems": _of(list, lambda value, schema, root: len(value) <= schema["maxItems"]),
    "items": _of(list, _items),
    "prefixItems": _of(list, lambda value, schema, root: all(
        is_valid(item, each, root) for item, each in zip(value, schema["prefixItems"], strict=False))),
    "required": _of(dict, lambda value, schema, root: all(key in value for key in schema["required"])),
    "properties": _of(dict, lambda value, schema, root: all(
        is_valid(value[key], each, root) for key, each in schema["properties"].items() if key in value)),
    "patternProperties": _of(dict, lambda value, schema, root: all(
        is_valid(value[key], each, root) for pattern, each in schema["patternProperties"].items()
        for key in value if re.search(pattern, key))),
    "additionalProperties": _of(dict, lambda value, schema, root: all(
        is_valid(value[key], schema["additionalProperties"], root) for key in _extra(value, schema))),
    "minProperties": _of(dict, lambda value, schema, root: len(value) >= schema["minProperties"]),
    "maxProperties": _of(dict, lambda value, schema, root: len(value) <= schema["maxProperties"]),
    "anyOf": lambda value, schema, root: any(is_valid(value, each, root) for each in schema["anyOf"]),
    "allOf": lambda value, schema, root: all(is_valid(value, each, root) for each in schema["allOf"]),
    "oneOf": lambda value, schema, root: sum(is_valid(value, each, root) for each in schema["oneOf"]) == 1,
    "$ref": _reference,
}
