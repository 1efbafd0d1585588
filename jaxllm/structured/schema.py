"""JSON schemas (draft 2020-12) in the form that the grammar library enforces exactly, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxllm.structured.problem import GrammarProblemError
from jaxllm.structured.tagged import tags_differ
from jaxllm.structured.termination import has_finite_instance

ENFORCED = frozenset({
    "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "oneOf", "pattern", "patternProperties", "prefixItems", "properties",
    "required", "type",
})  # fmt: skip
"""Keywords that restrict the text, and are enforced."""
ANNOTATIONS = frozenset({
    "$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding", "contentMediaType", "contentSchema", "default",
    "definitions", "deprecated", "description", "discriminator", "example", "examples", "externalDocs", "id",
    "readOnly", "title", "writeOnly", "xml",
})  # fmt: skip
"""Keywords that restrict nothing, by the standard or OpenAPI; so do those that begin with ``x-``."""
FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid")
"""The values of ``format`` that are enforced, each as a regular expression: the 29th of February exists in any year."""

Schema = Any
"""A decoded JSON schema: a dict, or a boolean."""

_OF_NAMES = ("$defs", "definitions", "patternProperties", "properties")
_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_SINGLE = ("additionalItems", "additionalProperties", "items")


def enforceable(schema: Mapping[str, Any], *, closed: bool = False) -> dict[str, Any]:
    """The schema, rewritten where that makes it enforceable.

    closed: objects whose schema lists properties, and does not say otherwise, have no others.

    Raises ``GrammarProblemError`` naming the first keyword that cannot be enforced, and where it is, or when no finite
    text satisfies the schema.
    """
    root = dict(schema)
    result = _rewritten(root, "#", lambda node, at: _checked(node, at, root, closed))
    if not has_finite_instance(result):
        raise GrammarProblemError("no finite JSON text satisfies the schema: it requires itself inside itself")
    return result


def _rewritten(node: Schema, at: str, rewrite: Callable[[dict[str, Any], str], dict[str, Any]]) -> Schema:
    """The schema with ``rewrite`` applied to it and to every schema in it; ``at`` is a JSON pointer."""
    if not isinstance(node, dict):
        return node
    result: dict[str, Any] = {}
    for key, value in rewrite(node, at).items():
        path = f"{at}/{key}"
        if key in _OF_NAMES and isinstance(value, dict):
            value = {name: _rewritten(child, f"{path}/{name}", rewrite) for name, child in value.items()}
        elif key in _LISTS and isinstance(value, list):
            value = [_rewritten(child, f"{path}/{index}", rewrite) for index, child in enumerate(value)]
        elif key in _SINGLE:
            value = _rewritten(value, path, rewrite)
        result[key] = value
    return result


def _checked(node: dict[str, Any], at: str, root: dict[str, Any], closed: bool) -> dict[str, Any]:
    """A copy of one schema, every keyword of which is enforced or restricts nothing."""
    result: dict[str, Any] = {}
    for key, value in node.items():
        if key == "$schema" or (key == "uniqueItems" and value is False):
            continue  # every schema is read as one of the same draft
        if key == "$id" and at != "#":
            raise _unenforceable(key, at, "it would change what $ref means there; only the whole schema can have one")
        if key == "x-guidance":
            raise _unenforceable(key, at, "set whitespace_pattern or disable_any_whitespace instead")
        if key not in ENFORCED and key not in ANNOTATIONS and not key.startswith("x-"):
            raise _unenforceable(key, at, f"enforced are {', '.join(sorted(ENFORCED))}")
        if key == "format" and value not in FORMATS:
            raise _unenforceable(key, at, f"it is {value!r}; enforced are {', '.join(FORMATS)}")
        result[key] = value
    if closed and ("properties" in node or "patternProperties" in node):
        result.setdefault("additionalProperties", False)
    _check_property_count(result, at)
    return _without_one_of(result, root)


def _check_property_count(node: dict[str, Any], at: str) -> None:
    """Keys that a schema does not name may come twice in the text, which then has fewer properties than it seems to."""
    needed, required = node.get("minProperties", 0), node.get("required", [])
    if not isinstance(needed, int) or not isinstance(required, list):
        return  # malformed, as the library will say
    any_name = node.get("additionalProperties") is not False or node.get("patternProperties")
    if any_name and needed > len(set(map(str, required))) + 1:
        raise _unenforceable("minProperties", at, f"it is {needed}, and keys that are not listed could be repeated; "
                             "name them in properties and required, or set additionalProperties to false")


def _without_one_of(node: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """With ``anyOf`` instead of a ``oneOf`` whose options exclude each other by a tag, which the library cannot see."""
    options = node.get("oneOf")
    if not isinstance(options, list):
        return node
    discriminator = node.get("discriminator")
    tag = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
    if isinstance(tag, str):
        # OpenAPI 3.1, 4.8.25: the tag has to be there.
        options = [_requiring(option, tag) for option in options]
    if "anyOf" in node or not tags_differ(options, root):
        return node
    return {"anyOf" if key == "oneOf" else key: options if key == "oneOf" else value for key, value in node.items()}


def _requiring(option: Schema, name: str) -> Schema:
    if not isinstance(option, dict) or not isinstance(option.get("required", []), list):
        return option
    return {**option, "required": list(dict.fromkeys([*option.get("required", ()), name]))}


def _unenforceable(keyword: str, at: str, hint: str) -> GrammarProblemError:
    return GrammarProblemError(f"the schema's keyword {keyword!r} at {at} cannot be enforced: {hint}")
