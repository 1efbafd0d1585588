"""Whatever a mask lets through to the end is what was asked for, as the detokenizer shows it."""

from __future__ import annotations

import json
import re
from typing import Literal

import numpy as np
import pydantic
import pytest
from structured.json_oracle import is_valid, parse
from structured.walks import random_walk

from jaxllm.structured import StructuredOutputsParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "height": {"type": "number", "exclusiveMinimum": 0.3, "maximum": 2.75},
        "tags": {"type": "array", "items": {"enum": ["a", "é", "東京", "🙂", 1, None]}, "minItems": 1, "maxItems": 3},
        "id": {"type": "string", "pattern": "^[A-F0-9]{4}$"},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {"node": {
        "type": "object",
        "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
        "required": ["value"], "additionalProperties": False,
    }},
    "$ref": "#/$defs/node",
}
EITHER = {
    "oneOf": [
        {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "number", "minimum": 0}},
         "required": ["kind", "r"], "additionalProperties": False},
        {"type": "object", "properties": {"kind": {"const": "name"}, "text": {"type": ["string", "null"]}},
         "required": ["kind", "text"], "additionalProperties": False},
    ],
}
OPEN = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
        "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
TUPLE = {"type": "array", "prefixItems": [{"type": "integer", "multipleOf": 7}, {"allOf": [
    {"type": "string", "minLength": 2}, {"maxLength": 4}]}], "items": False, "minItems": 2}
SCHEMAS = {"person": PERSON, "tree": TREE, "either": EITHER, "open": OPEN, "tuple": TUPLE}
REGEXES = [
    r"(\+\d{1,3} )?\d{3}-\d{4}", r"[a-z]{2,8}@(example|test)\.(com|org)", r"é+|東京|🙂{2}", r"(a|b)*abb",
    r" leading and trailing ", r"[^\x00-\x7f]{1,4}", r"(?i:yes|no)!?", "line one\nline two", r"[\w ]{1,20}\.",
]
CHOICES = [("yes", "no"), ("a", "ab", "abc"), ("é", "e\u0301"), ("🙂", "🙃", "🙂🙂"), (" x", "x", "x "),
           ("<|im_end|>", "</s>"), ('quote "', "new\nline", "back\\slash")]
ARITHMETIC = r"""
start: sum
sum: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: /[0-9]{1,3}/ | "(" sum ")"
"""
PALINDROME = 'root ::= "a" root "a" | "b" root "b" | "é"? # odd or even\n'


def texts(real, count, **params):
    """The texts of random walks, decoded as outputs are."""
    compiler, tokenizer = real
    grammar = compiler.compile(StructuredOutputsParams(**params))
    return [tokenizer.decode(random_walk(grammar, tokenizer, np.random.default_rng(seed))) for seed in range(count)]


@pytest.mark.parametrize("name", SCHEMAS)
def test_json_texts_satisfy_their_schema(real, name):
    for text in texts(real, 8, json=SCHEMAS[name]):
        assert is_valid(parse(text), SCHEMAS[name]), text


@pytest.mark.parametrize("options", [{"disable_any_whitespace": True}, {"whitespace_pattern": "[ ]{1,2}"}], ids=str)
def test_white_space_between_the_parts_of_json_is_as_asked_for(real, options):
    for text in texts(real, 6, json=TREE, **options):
        assert is_valid(parse(text), TREE)
        spaces = re.findall(r"\s+", text)
        assert all(space in (" ", "  ") for space in spaces)
        assert not spaces or "whitespace_pattern" in options


def test_any_json_object_is_an_object(real):
    found = [parse(text) for text in texts(real, 8, json_object=True)]
    assert all(isinstance(value, dict) for value in found)
    assert any(found)


@pytest.mark.parametrize("regex", REGEXES)
def test_texts_match_their_regular_expression(real, regex):
    for text in texts(real, 6, regex=regex):
        assert re.fullmatch(regex, text), text


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_texts_are_one_of_the_choices_and_each_is_found(real, choice):
    found = set(texts(real, 60, choice=choice))
    assert found <= set(choice)
    assert len(found) > 1


def test_texts_of_a_lark_grammar_can_be_evaluated(real):
    for text in texts(real, 6, grammar=ARITHMETIC):
        assert re.fullmatch(r"[0-9()+*/-]+", text)
        assert compile(re.sub(r"\d+", "1", text), "text", "eval")


def test_texts_of_a_gbnf_grammar_are_derived_from_its_root(real):
    for text in texts(real, 6, grammar=PALINDROME):
        assert re.fullmatch("[ab]*é?[ab]*", text)
        assert text == text[::-1]


@pytest.mark.sweep
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("options", [{}, {"disable_any_whitespace": True}], ids=str)
def test_many_json_texts_satisfy_their_schema(real, name, options):
    for text in texts(real, 60, json=SCHEMAS[name], **options):
        assert is_valid(parse(text), SCHEMAS[name]), text


def test_deeply_nested_and_large_schemas_compile(real):
    nested = {"type": "integer"}
    for _ in range(60):
        nested = {"type": "object", "properties": {"a": nested}, "required": ["a"], "additionalProperties": False}
    value = parse(texts(real, 1, json=nested, disable_any_whitespace=True)[0])
    for _ in range(60):
        value = value["a"]
    assert isinstance(value, int)
    words = [f"{number * 7919 % 100003}é" for number in range(5000)]
    assert parse(texts(real, 1, json={"enum": words})[0]) in words
    assert texts(real, 1, choice=words)[0] in words


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = pydantic.Field(ge=1, le=9)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: str | None = None


class Owner(pydantic.BaseModel):
    pet: Cat | Dog = pydantic.Field(discriminator="kind")
    others: list[Cat | Dog] = pydantic.Field(max_length=2)


def test_a_pydantic_model_reads_what_it_described(real):
    for text in texts(real, 8, json=Owner, disable_additional_properties=True):
        owner = Owner.model_validate_json(text)
        assert json.loads(text)["pet"]["kind"] == owner.pet.kind
