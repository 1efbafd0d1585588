from __future__ import annotations

import json

import pytest
from structured.json_oracle import is_valid, parse
from structured.walks import accepts

from jaxllm.errors import ParameterError
from jaxllm.structured import StructuredOutputsParams
from jaxllm.structured.problem import GrammarProblemError
from jaxllm.structured.schema import ANNOTATIONS, ENFORCED, FORMATS, enforceable


def an_object(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


CIRCLE = an_object(["kind", "r"], kind={"const": "circle"}, r={"type": "integer"})
NAME = an_object(["kind"], kind={"enum": ["name", "label"]}, r={"type": "string"})
# Each with texts that satisfy it and texts that do not.
ENFORCEABLE = {
    "type": ({"type": ["integer", "null"]}, ["3", "null"], ['"a"', "1.5"]),
    "enum": ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"', "true"]),
    "const": ({"const": {"a": [1, "é"]}}, ['{"a":[1,"é"]}'], ['{"a":["é",1]}', "{}"]),
    "properties": (an_object(a={"type": "integer"}), ['{"a":1}', "{}", '{"b":"x"}'], ['{"a":"x"}']),
    "required": (an_object(["z"], a={}), ['{"z":1}', '{"a":1,"z":2}'], ['{"a":1}']),
    "additionalProperties": ({**an_object(a={}), "additionalProperties": {"type": "integer"}},
                             ['{"a":"x","b":1}'], ['{"a":1,"b":"x"}']),
    "patternProperties": ({"type": "object", "patternProperties": {"^x_": {"type": "integer"}},
                           "additionalProperties": False}, ['{"x_a":1}'], ['{"x_a":"y"}', '{"y":1}']),
    "minProperties": ({**an_object(["a"], a={}), "minProperties": 2}, ['{"a":1,"b":2}'], ['{"a":1}']),
    "maxProperties": ({"type": "object", "maxProperties": 1}, ['{"a":1}', "{}"], ['{"a":1,"b":2}']),
    "items": ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1,2]"], ['[1,"a"]']),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, ["[1]"],
                    ['["a"]', "[1,2]"]),
    "minItems": ({"type": "array", "minItems": 2}, ["[1,2]"], ["[1]"]),
    "maxItems": ({"type": "array", "maxItems": 1}, ["[1]"], ["[1,2]"]),
    "minLength": ({"type": "string", "minLength": 2}, ['"🙂é"', r'"\n\n"'], ['"🙂"', r'"\n"']),
    "maxLength": ({"type": "string", "maxLength": 1}, ['"🙂"', r'"\n"'], ['"ab"']),
    "pattern": ({"type": "string", "pattern": "b+[0-9]"}, ['"abb1c"'], ['"ab"']),
    "pattern and length": ({"type": "string", "pattern": "^a*$", "maxLength": 2}, ['"aa"', '""'], ['"aaa"', '"b"']),
    "minimum": ({"type": "integer", "minimum": 3}, ["3", "40"], ["2", "-4"]),
    "maximum": ({"type": "number", "maximum": 1.5}, ["1.5", "-7", "1"], ["1.51", "2"]),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 3}, ["4"], ["3"]),
    "exclusiveMaximum": ({"type": "number", "exclusiveMaximum": 1}, ["0.99"], ["1", "1.0"]),
    "multipleOf": ({"type": "number", "multipleOf": 0.1}, ["1.1", "3"], ["1.15"]),
    "a bound without a type": ({"minimum": 3}, ['"a"', "4"], ["2"]),
    "anyOf": ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ['"a"']),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, ["1", "null"], ['"a"']),
    "allOf": ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]}, ["4"], ["2", "6"]),
    "$ref": ({"$defs": {"i": {"type": "integer"}}, "$ref": "#/$defs/i", "minimum": 3}, ["3"], ["2", '"a"']),
    "recursion": ({"type": "array", "items": {"$ref": "#"}}, ["[[],[[]]]"], ["[1]"]),
    "false": (an_object(a=False), ["{}", '{"b":1}'], ['{"a":1}']),
    "additionalItems": ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, ["[1]"],
                        ['["a"]', "[1,2]"]),
    "draft 4's exclusive bounds": ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, ["4"], ["3"]),
    "uniqueItems: false": ({"type": "array", "uniqueItems": False}, ["[1,1]"], ["1"]),
    "annotations": ({"type": "null", "title": "not", "description": "d", "default": {"not": 1}, "examples": [{"if": 1}],
                     "deprecated": True, "$comment": "c", "readOnly": True, "x-order": 3}, ["null"], ["1"]),
    "names that are keywords": (an_object(["not"], **{"not": {"const": {"if": 1}}}), ['{"not":{"if":1}}'],
                                ['{"not":1}']),
}
UNENFORCEABLE = {
    "not": {"not": {"type": "null"}}, "if": {"if": {}, "then": {}}, "uniqueItems": {"uniqueItems": True},
    "contains": {"contains": {"const": 1}}, "propertyNames": {"propertyNames": {"pattern": "^x"}},
    "dependentRequired": {"dependentRequired": {"a": ["b"]}}, "dependencies": {"dependencies": {"a": ["b"]}},
    "unevaluatedProperties": {"unevaluatedProperties": False}, "$dynamicRef": {"$dynamicRef": "#node"},
    "maxLenght": {"type": "string", "maxLenght": 3}, "nullable": {"type": "string", "nullable": True},
    "format": {"type": "string", "format": "password"}, "x-guidance": {"x-guidance": {"lenient": True}},
    "minProperties": {"type": "object", "minProperties": 2},
}


@pytest.mark.parametrize("name", ENFORCEABLE)
def test_a_keyword_is_enforced_no_more_and_no_less(compile_bytes, name):
    schema, good, bad = ENFORCEABLE[name]
    grammar = compile_bytes(json=schema)
    assert [text for text in good if not accepts(grammar, text)] == []
    assert [text for text in bad if accepts(grammar, text)] == []


def test_the_texts_above_are_judged_rightly():
    for name, (schema, good, bad) in ENFORCEABLE.items():
        if name not in ("additionalItems", "draft 4's exclusive bounds"):  # the validator is of a later draft
            assert all(is_valid(parse(text), schema) for text in good), name
            assert not any(is_valid(parse(text), schema) for text in bad), name


def test_every_enforced_keyword_is_shown_above():
    assert set(ENFORCEABLE) | {"format"} >= ENFORCED


PLACES = {
    "#": lambda inner: inner,
    "#/properties/a~b/items": lambda inner: an_object(**{"a~b": {"type": "array", "items": inner}}),
    "#/$defs/d/anyOf/1": lambda inner: {"$defs": {"d": {"anyOf": [{}, inner]}}, "type": "null"},
    "#/prefixItems/0/additionalProperties": lambda inner: {"prefixItems": [{"additionalProperties": inner}]},
    "#/allOf/0/patternProperties/^x": lambda inner: {"allOf": [{"patternProperties": {"^x": inner}}]},
}


@pytest.mark.parametrize("keyword", UNENFORCEABLE)
@pytest.mark.parametrize("at", PLACES)
def test_what_cannot_be_enforced_is_refused_by_its_name_and_place(byte_compiler, keyword, at):
    params = StructuredOutputsParams(json=PLACES[at](UNENFORCEABLE[keyword]))
    with pytest.raises(ParameterError) as raised:
        byte_compiler.compile(params)
    assert f"keyword {keyword!r} at {at} cannot be enforced" in str(raised.value)
    assert raised.value.parameter == "structured_outputs"


def test_a_name_within_the_schema_that_moves_references_is_refused(byte_compiler):
    schema = {"$id": "https://example.com/a", "$defs": {"b": {"$id": "b", "type": "null"}}, "$ref": "#/$defs/b"}
    with pytest.raises(ParameterError, match=r"'\$id' at #/\$defs/b"):
        byte_compiler.compile(StructuredOutputsParams(json=schema))
    del schema["$defs"]["b"]["$id"]
    assert accepts(byte_compiler.compile(StructuredOutputsParams(json=schema)), "null")


@pytest.mark.parametrize("draft", ["http://json-schema.org/draft-04/schema#", "https://example.com/unknown"])
def test_whatever_draft_is_named_keywords_mean_the_same(compile_bytes, draft):
    properties = an_object(["a"], a={"id": "#y", "const": 1}, b={"prefixItems": [{"$ref": "#"}]})
    schema = {"$schema": draft, "id": "https://example.com/x", **properties}
    grammar = compile_bytes(json=schema)
    assert accepts(grammar, '{"a":1,"b":[{"a":1}]}')
    assert not accepts(grammar, '{"a":2}')
    assert not accepts(grammar, '{"a":1,"b":[2]}')


def test_older_drafts_do_not_hide_newer_keywords(byte_compiler):
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "dependentRequired": {"a": ["b"]}}
    with pytest.raises(ParameterError, match="dependentRequired"):
        byte_compiler.compile(StructuredOutputsParams(json=schema))


GOOD = {"date": "2024-02-29", "date-time": "2024-01-31T10:00:00.5+01:00", "duration": "P1DT2H", "email": "a@b.co",
        "hostname": "a-b.example", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "time": "10:00:00Z",
        "uri": "https://example.com/a?b#c", "uuid": "123e4567-e89b-12d3-a456-426614174000"}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_are_enforced(compile_bytes, name):
    grammar = compile_bytes(json={"type": "string", "format": name})
    assert accepts(grammar, json.dumps(GOOD[name]))
    assert not accepts(grammar, '"-"')
    assert not accepts(grammar, json.dumps(GOOD[name] + " "))


def test_a_known_property_comes_once_and_in_order(compile_bytes):
    grammar = compile_bytes(json=an_object(["b"], b={}, a={}))
    assert accepts(grammar, '{"b":1,"a":2,"c":3}')
    assert not accepts(grammar, '{"a":2,"b":1}')
    assert not accepts(grammar, '{"b":1,"b":1}')


@pytest.mark.parametrize("references", [False, True])
def test_unions_with_a_tag_are_enforced_whatever_names_their_options(compile_bytes, references):
    options = [{"$ref": "#/$defs/a~1b"}, {"$ref": "#/$defs/c%20d"}] if references else [CIRCLE, NAME]
    grammar = compile_bytes(json={"$defs": {"a/b": CIRCLE, "c d": NAME}, "oneOf": options})
    assert accepts(grammar, '{"kind":"circle","r":1}')
    assert accepts(grammar, '{"kind":"label","r":"x"}')
    assert not accepts(grammar, '{"kind":"circle","r":"x"}')
    assert not accepts(grammar, '{"kind":"other","r":1}')


def test_a_discriminator_has_to_be_there_as_openapi_says(compile_bytes):
    loose = {**NAME, "required": []}
    tagged = {"oneOf": [CIRCLE, loose], "discriminator": {"propertyName": "kind"}}
    grammar = compile_bytes(json=tagged)
    assert accepts(grammar, '{"kind":"name"}')
    assert not accepts(grammar, '{"r":"x"}')


@pytest.mark.parametrize("options", [
    [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}],
    [CIRCLE, {**NAME, "required": []}],
    [CIRCLE, an_object(["kind"], kind={"enum": ["name", "circle"]})],
    [{key: value for key, value in each.items() if key != "type"} for each in (CIRCLE, NAME)],
], ids=str)
def test_unions_whose_options_may_overlap_are_refused(compile_bytes, options):
    assert {"oneOf": options} == enforceable({"oneOf": options})
    with pytest.raises(ParameterError, match="oneOf"):
        compile_bytes(json={"$defs": {str(number): each for number, each in enumerate(options)},
                            "oneOf": [{"$ref": f"#/$defs/{number}"} for number in range(len(options))]})


def test_a_union_beside_another_one_keeps_both(compile_bytes):
    other = [an_object(["r"], r={"minimum": 5}), {"type": "null"}]
    grammar = compile_bytes(json={"oneOf": [CIRCLE, NAME], "anyOf": other})
    assert accepts(grammar, '{"kind":"circle","r":7}')
    assert not accepts(grammar, '{"kind":"circle","r":3}')
    assert not accepts(grammar, '{"kind":"name"}')


def test_closed_objects_have_no_other_properties(compile_bytes):
    schema = an_object(a=an_object(b={}), c={"type": "object"}, d={**an_object(e={}), "additionalProperties": True})
    text = '{"a":{%s},"c":{%s},"d":{%s}}'
    for closed in (False, True):
        grammar = compile_bytes(json=schema, disable_additional_properties=closed)
        assert accepts(grammar, text % ("", '"x":1', '"x":1'))
        assert accepts(grammar, text % ('"x":1', "", "")) is not closed
        assert accepts(grammar, '{"x":1}') is not closed


@pytest.mark.parametrize("schema", [
    {"$ref": "#"}, an_object(["a"], a={"$ref": "#"}), {"type": "array", "minItems": 1, "items": {"$ref": "#"}},
    {"$defs": {"a": an_object(["b"], b={"$ref": "#/$defs/b"}), "b": an_object(["a"], a={"$ref": "#/$defs/a"})},
     "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
    {"type": "array", "prefixItems": [True, {"allOf": [{}, {"$ref": "#"}]}], "minItems": 2},
], ids=str)
def test_schemas_that_require_themselves_without_end_are_refused(byte_compiler, schema):
    with pytest.raises(ParameterError, match="no finite JSON text"):
        byte_compiler.compile(StructuredOutputsParams(json=schema))


@pytest.mark.parametrize("schema", [
    an_object(a={"$ref": "#"}), an_object(["a"], a={"anyOf": [{"$ref": "#"}, {"type": "null"}]}),
    {"type": "array", "items": {"$ref": "#"}}, {"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": 0},
    {"$defs": {"a": an_object(["b"], b={"$ref": "#/$defs/b"}), "b": {"oneOf": [{"const": 1}, {"$ref": "#/$defs/a"}]}},
     "$ref": "#/$defs/a"},
    {"type": ["object", "string"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
], ids=str)
def test_schemas_that_refer_to_themselves_and_end_are_taken(schema):
    assert enforceable(schema)


def test_the_schema_that_was_passed_in_stays_as_it_was():
    schema = {"oneOf": [CIRCLE, NAME], "discriminator": {"propertyName": "kind"}, "uniqueItems": False}
    before = json.dumps(schema)
    assert enforceable(schema, closed=True) != schema
    assert json.dumps(schema) == before


def test_schemas_nested_beyond_reason_are_refused(byte_compiler):
    schema = {}
    for _ in range(400):
        schema = {"items": schema}
    with pytest.raises(ParameterError):
        byte_compiler.compile(StructuredOutputsParams(json=schema))
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(ParameterError):
        StructuredOutputsParams(json=schema)


def test_no_keyword_is_both_enforced_and_an_annotation():
    assert not ENFORCED & ANNOTATIONS
    with pytest.raises(GrammarProblemError, match="'foo' at #"):
        enforceable({"foo": 1})
