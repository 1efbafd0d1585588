from __future__ import annotations

import json
import subprocess
import sys

import pytest

from jaxllm.errors import ParameterError
from jaxllm.structured import StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"b": {"const": "é"}, "a": {"enum": [1, None]}}}


@pytest.mark.parametrize("given", [
    {}, {"json_object": False}, {"regex": "a", "choice": ["a"]}, {"json": {}, "json_object": True},
    {"grammar": "start: /a/", "regex": "a"},
], ids=str)
def test_exactly_one_kind_has_to_be_given(given):
    with pytest.raises(ParameterError, match="exactly one of json, regex, choice, grammar, json_object"):
        StructuredOutputsParams(**given)


@pytest.mark.parametrize(("name", "value"), [
    ("json", 3), ("json", "{"), ("json", "[1]"), ("json", "true"), ("json", ""), ("json", {"const": float("nan")}),
    ("json", {"const": {1}}), ("json", {1: 2}), ("json", '{"a": 1, "a": 2}'), ("json", '{"const": NaN}'), ("json", int),
    ("json", {"const": "\ud800"}), ("regex", ""), ("regex", 1), ("regex", b"a"), ("regex", "\ud800"),
    ("choice", []), ("choice", "yes"), ("choice", ["a", 1]), ("choice", {"a": 1}), ("choice", 5),
    ("choice", ["\ud800"]), ("grammar", ""), ("grammar", ["start: /a/"]), ("json_object", 1), ("json_object", "yes"),
], ids=repr)
def test_values_of_the_wrong_kind_are_named(name, value):
    with pytest.raises(ParameterError) as raised:
        StructuredOutputsParams(**{name: value})
    assert raised.value.parameter == name


@pytest.mark.parametrize(("name", "given"), [
    ("disable_any_whitespace", {"json_object": True, "disable_any_whitespace": 1}),
    ("disable_any_whitespace", {"regex": "a", "disable_any_whitespace": True}),
    ("disable_additional_properties", {"choice": ["a"], "disable_additional_properties": True}),
    ("whitespace_pattern", {"grammar": "start: /a/", "whitespace_pattern": " "}),
    ("whitespace_pattern", {"json": {}, "whitespace_pattern": " ", "disable_any_whitespace": True}),
    ("whitespace_pattern", {"json": {}, "whitespace_pattern": ""}),
    ("structural_tag", {"structural_tag": "{}"}),
    ("structural_tag", {"json": {}, "structural_tag": "{}"}),
], ids=str)
def test_options_that_would_do_nothing_are_refused_by_name(name, given):
    with pytest.raises(ParameterError) as raised:
        StructuredOutputsParams(**given)
    assert raised.value.parameter == name


def test_the_same_schema_is_the_same_request_however_it_is_given():
    class Model:
        @classmethod
        def model_json_schema(cls):
            return SCHEMA

    ways = (SCHEMA, json.dumps(SCHEMA), Model, json.dumps(SCHEMA, indent=4))
    same = {StructuredOutputsParams(json=schema) for schema in ways}
    assert len(same) == 1
    assert json.loads(same.pop().json) == SCHEMA


def test_a_class_that_cannot_describe_itself_is_refused():
    class Broken:
        @classmethod
        def model_json_schema(cls):
            raise LookupError("no schema for a socket")

    with pytest.raises(ParameterError, match="no schema for a socket"):
        StructuredOutputsParams(json=Broken)


def test_the_order_of_properties_makes_a_difference():
    turned = {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}
    assert StructuredOutputsParams(json=SCHEMA) != StructuredOutputsParams(json=turned)


def test_what_was_passed_in_can_change_without_the_parameters_changing():
    schema, choice = {"enum": ["a"]}, ["a", "b"]
    first, second = StructuredOutputsParams(json=schema), StructuredOutputsParams(choice=choice)
    before = hash((first, second))
    schema["enum"].append("b")
    choice.append("c")
    assert hash((first, second)) == before
    assert second.choice == ("a", "b")


def test_parameters_cannot_be_changed():
    with pytest.raises(AttributeError):
        StructuredOutputsParams(regex="a").regex = "b"


def test_parameters_load_neither_the_grammar_library_nor_jax():
    code = ("import sys; from jaxllm.structured.params import StructuredOutputsParams as P; P(json={'type': 'null'}); "
            "assert not {'llguidance', 'jax', 'pydantic', 'tokenizers'} & set(sys.modules), sorted(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True)
