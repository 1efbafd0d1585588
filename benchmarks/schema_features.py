"""What JSON schemas can ask for: each with a text that satisfies it and one that does not."""

from __future__ import annotations

from typing import Any, NamedTuple


class Feature(NamedTuple):
    """A schema, JSON text that satisfies it, and JSON text that does not."""

    name: str
    schema: dict[str, Any]
    valid: str
    invalid: str


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


_A_OR_B = {"A": _object("t", "x", t={"const": "a"}, x={"type": "integer"}),
           "B": _object("t", "y", t={"const": "b"}, y={"type": "string"})}
_INTEGER, _STRING = {"type": "integer"}, {"type": "string"}

FEATURES = (
    Feature("type, a list of them", {"type": ["integer", "null"]}, "null", '"a"'),
    Feature("enum", {"enum": ["a", 1, None]}, "1", "2"),
    Feature("const", {"const": {"a": [1, 2]}}, '{"a":[1,2]}', '{"a":[2,1]}'),
    Feature("required", _object("z", a={}), '{"z":1}', '{"a":1}'),
    Feature("additionalProperties: schema", {**_object(a={}), "additionalProperties": _INTEGER},
            '{"b":1}', '{"b":"x"}'),
    Feature("patternProperties", {**_object(), "patternProperties": {"^x_": _INTEGER}, "additionalProperties": False},
            '{"x_a":1}', '{"y":1}'),
    Feature("propertyNames", {"type": "object", "propertyNames": {"pattern": "^x"}}, '{"xa":1}', '{"y":1}'),
    Feature("minProperties, any keys", {"type": "object", "minProperties": 2, "additionalProperties": _INTEGER},
            '{"a":1,"b":2}', '{"a":1,"a":1}'),
    Feature("maxProperties", {"type": "object", "maxProperties": 1}, '{"a":1}', '{"a":1,"b":2}'),
    Feature("dependentRequired", {**_object(a={}, b={}), "dependentRequired": {"a": ["b"]}},
            '{"a":1,"b":1}', '{"a":1}'),
    Feature("the same under draft 7's $schema", {
        "$schema": "http://json-schema.org/draft-07/schema#", **_object(a={}, b={}), "dependentRequired": {"a": ["b"]}},
        '{"a":1,"b":1}', '{"a":1}'),
    Feature("if, then", {**_object(a={}, b={}), "if": {"required": ["a"]}, "then": {"required": ["b"]}},
            '{"a":1,"b":1}', '{"a":1}'),
    Feature("not", {"type": "integer", "not": {"const": 3}}, "4", "3"),
    Feature("anyOf", {"anyOf": [_INTEGER, {"type": "null"}]}, "3", '"a"'),
    Feature("oneOf, options that overlap", {"oneOf": [{**_INTEGER, "minimum": 0}, {**_INTEGER, "maximum": 9}]},
            "-1", "5"),
    Feature("oneOf, tagged, by $ref", {"$defs": _A_OR_B, "oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}]},
            '{"t":"a","x":1}', '{"t":"a","y":"b"}'),
    Feature("allOf", {"allOf": [{**_INTEGER, "minimum": 3}, {"maximum": 5}]}, "4", "6"),
    Feature("$ref with keywords beside it", {"$defs": {"i": _INTEGER}, "$ref": "#/$defs/i", "minimum": 3}, "4", "2"),
    Feature("recursion", {"type": "array", "items": {"$ref": "#"}}, "[[],[[]]]", "[1]"),
    Feature("a $ref to elsewhere", {"$ref": "https://example.com/schema.json"}, "1", "2"),
    Feature("prefixItems", {"type": "array", "prefixItems": [_INTEGER, _STRING], "items": False}, '[1,"a"]', '["a",1]'),
    Feature("minItems", {"type": "array", "minItems": 2}, "[1,2]", "[1]"),
    Feature("uniqueItems", {"type": "array", "uniqueItems": True}, "[1,2]", "[1,1]"),
    Feature("contains", {"type": "array", "contains": {"const": 1}}, "[1]", "[2]"),
    Feature("maxLength", {**_STRING, "maxLength": 1}, r'"\n"', '"ab"'),
    Feature("pattern, not anchored", {**_STRING, "pattern": "b+"}, '"abba"', '"a"'),
    Feature("pattern and maxLength", {**_STRING, "pattern": "^a*$", "maxLength": 2}, '"aa"', '"aaa"'),
    Feature("format: date", {**_STRING, "format": "date"}, '"2024-01-31"', '"2024-13-31"'),
    Feature("format, an unknown one", {**_STRING, "format": "regex"}, '"a"', '"["'),
    Feature("minimum", {**_INTEGER, "minimum": 3}, "3", "2"),
    Feature("exclusiveMaximum of a number", {"type": "number", "exclusiveMaximum": 1.5}, "1.25", "1.5"),
    Feature("multipleOf 0.1", {"type": "number", "multipleOf": 0.1}, "1.1", "1.15"),
    Feature("a bound without a type", {"minimum": 3}, '"a"', "2"),
    Feature("unevaluatedProperties", {**_object(a={}), "unevaluatedProperties": False}, '{"a":1}', '{"b":1}'),
    Feature("a keyword that is misspelt", {**_STRING, "maxLenght": 1}, '"a"', '"ab"'),
)
