"""``jaxllm generate --json-schema / --regex / --choice / --grammar`` against ``LLM``, and what of them is refused."""

from __future__ import annotations

import json

import pytest
import typer

from jaxllm import SamplingParams, StructuredOutputsParams
from jaxllm.cli.structure import StructureOptions

SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
          "additionalProperties": False}
SQL = 'root ::= "SELECT " column\ncolumn ::= "a" | "b"\n'


def test_without_any_of_them_nothing_is_asked_for():
    assert StructureOptions().params() is None
    assert StructureOptions(choice=[]).params() is None


def test_a_schema_is_given_by_itself_or_by_its_file(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    expected = StructuredOutputsParams(json=SCHEMA)
    assert StructureOptions(json_schema=str(file)).params() == expected
    assert StructureOptions(json_schema="\n " + json.dumps(SCHEMA)).params() == expected


def test_expressions_choices_and_files_of_grammars_reach_their_fields(tmp_path):
    file = tmp_path / "sql.gbnf"
    file.write_text(SQL)
    assert StructureOptions(regex="a|b").params() == StructuredOutputsParams(regex="a|b")
    assert StructureOptions(choice=["yes", "no"]).params() == StructuredOutputsParams(choice=["yes", "no"])
    assert StructureOptions(grammar=file).params() == StructuredOutputsParams(grammar=SQL)


@pytest.mark.parametrize(("options", "message"), [
    ({"json_schema": "{"}, "this text is not JSON"),
    ({"json_schema": "/no/such/schema.json"}, "'/no/such/schema.json' cannot be read"),
    ({"regex": ""}, "regex='' is not allowed"),
    ({"regex": "a", "choice": ["b"]}, "not together with --choice"),
])
def test_what_is_malformed_or_contradicts_is_wrong_usage(options, message):
    with pytest.raises(typer.BadParameter, match=message):
        StructureOptions(**options).params()


def test_a_file_that_is_no_text_is_wrong_usage(tmp_path):
    file = tmp_path / "grammar.lark"
    file.write_bytes(b"start: \xff")
    with pytest.raises(typer.BadParameter, match="cannot be read: 'utf-8' codec") as caught:
        StructureOptions(grammar=file).params()
    assert caught.value.param_hint == "--grammar"


def test_choices_are_those_of_the_library(generate, llm):
    result = generate("--raw", "hi", "--choice", "red apple", "--choice", "green pear", "-q")
    params = SamplingParams(temperature=0.0, structured_outputs=StructuredOutputsParams(
        choice=["red apple", "green pear"]))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == llm.generate("hi", params)[0].outputs[0].text + "\n"
    assert result.stdout.strip() in ("red apple", "green pear")


def test_every_sample_of_every_prompt_satisfies_the_schema(generate):
    result = generate("hi", "ho", "-n", 2, "--seed", 1, "--json", "--json-schema", json.dumps(SCHEMA))
    assert result.exit_code == 0
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(records) == 4
    for record in records:
        assert record["finish_reason"] == "length" or isinstance(json.loads(record["text"])["ok"], bool)


def test_a_grammar_comes_from_a_file(generate, tmp_path):
    (tmp_path / "sql.gbnf").write_text(SQL)
    result = generate("hi", "--grammar", tmp_path / "sql.gbnf", "-q")
    assert result.stdout in ("SELECT a\n", "SELECT b\n")


def test_what_cannot_be_enforced_is_an_error_of_the_request(generate):
    result = generate("hi", "--json-schema", '{"not": {}}', "-q")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "keyword 'not'" in result.stderr


@pytest.mark.parametrize(("arguments", "message"), [
    (["--regex", "a", "--grammar", "x"], "not together with --grammar"),
    (["--json-schema", "schema.jsn"], "'schema.jsn' cannot be read"),
    (["--regex", "a", "--ignore-eos"], "ignore_eos=True is not allowed"),
])
def test_wrong_usage_is_exit_code_2_before_any_model_is_opened(run, arguments, message):
    result = run("generate", "-m", "/no/such/model", "hi", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
