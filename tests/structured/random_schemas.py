"""Random JSON schemas of what can be enforced."""

from __future__ import annotations

_TYPES = ["object", "string", "array", "integer", "number", "null", "boolean"]
_NAMES = ["a", "b", "é"]


def random_schema(generator, depth=0):
    """A schema, sometimes one that nothing satisfies, of up to four levels."""
    if depth > 3 or generator.random() < 0.1:
        return {"type": str(generator.choice(_TYPES[3:]))}
    return _MAKERS[generator.integers(0, len(_MAKERS))](generator, depth)


def _some(generator, **keywords):
    """A random part of the keywords."""
    return {name: make() for name, make in keywords.items() if generator.random() < 0.4}


def _string(generator, depth):
    return {"type": "string", **_some(
        generator, minLength=lambda: int(generator.integers(0, 3)), maxLength=lambda: int(generator.integers(2, 6)),
        pattern=lambda: str(generator.choice(["^[ab]*$", "^é+$", "^x?[0-9]{1,3}$", "^(a|b)"])))}


def _number(generator, depth, kind="number"):
    return {"type": kind, **_some(
        generator, minimum=lambda: int(generator.integers(-20, 5)),
        maximum=lambda: float(generator.integers(5, 90)) / 2,
        exclusiveMinimum=lambda: int(generator.integers(-30, 5)),
        exclusiveMaximum=lambda: int(generator.integers(6, 50)),
        multipleOf=lambda: float(generator.choice([2, 3, 0.5, 0.25])))}


def _integer(generator, depth):
    return _number(generator, depth, "integer")


def _object(generator, depth):
    names = [name for name in _NAMES if generator.random() < 0.6]
    return {"type": "object", "properties": {name: random_schema(generator, depth + 1) for name in names}, **_some(
        generator, required=lambda: [str(name) for name in _NAMES if generator.random() < 0.4],
        additionalProperties=lambda: bool(generator.random() < 0.3) or random_schema(generator, depth + 1),
        patternProperties=lambda: {"^x_": random_schema(generator, depth + 1)},
        minProperties=lambda: int(generator.integers(0, 2)), maxProperties=lambda: int(generator.integers(1, 4)))}


def _array(generator, depth):
    return {"type": "array", "items": random_schema(generator, depth + 1), **_some(
        generator, minItems=lambda: int(generator.integers(0, 3)), maxItems=lambda: int(generator.integers(1, 4)),
        prefixItems=lambda: [random_schema(generator, depth + 1) for _ in range(generator.integers(1, 3))])}


def _enum(generator, depth):
    values = ["a", "é\n", 1, 2.5, None, True, [1, {"a": None}], {"b": []}]
    chosen = [value for value in values if generator.random() < 0.5] or ["a"]
    return {"enum": chosen} if generator.random() < 0.7 else {"const": chosen[0]}


def _combined(generator, depth):
    word = str(generator.choice(["anyOf", "allOf", "oneOf"]))
    options = [random_schema(generator, depth + 1) for _ in range(generator.integers(1, 4))]
    beside = random_schema(generator, depth + 2) if generator.random() < 0.3 else {}
    return {**beside, word: options}


def _types(generator, depth):
    return {**_string(generator, depth), **_array(generator, depth), **_number(generator, depth),
            "type": [str(name) for name in _TYPES if generator.random() < 0.5] or ["null"]}


def _reference(generator, depth):
    beside = {"title": "shared"} if generator.random() < 0.5 else random_schema(generator, 4)
    return {"$ref": "#/$defs/shared", **beside}


_MAKERS = (_string, _integer, _number, _object, _array, _enum, _combined, _types, _reference)


def random_document(generator):
    """A schema with definitions for its references, which may refer to themselves."""
    return {**random_schema(generator), "$defs": {"shared": random_schema(generator, 1)}}
