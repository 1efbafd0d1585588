from __future__ import annotations

import json

import grammar_mask
import pytest
from grammar_libraries import JaxLLM, LLGuidance, closure, weight
from schema_features import FEATURES, Feature


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "grammar.json"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grammar_mask, "import_xgrammar", lambda: None)
        assert grammar_mask.main(["--requests", "3", "--repeat", "1", "--json", str(path)]) == 0
    return json.loads(path.read_text())


def test_every_case_is_timed(report):
    assert [cost["case"] for cost in report["costs"]] == [case.name for case in grammar_mask.CASES]
    for cost in report["costs"]:
        assert cost["compile_ms"] > 0
        assert 0 < cost["median_us"] <= cost["max_us"]
    assert set(report["steps_ms"]) == {case.name for case in grammar_mask.CASES}


def test_every_feature_is_enforced_or_refused(report):
    assert set(report["features"]) == {feature.name for feature in FEATURES}
    assert {each["jaxllm"] for each in report["features"].values()} == {"enforced", "refused"}
    assert "IGNORED" in {each["llguidance"] for each in report["features"].values()}


def test_the_library_in_use_is_installed_whole(report):
    (size,) = report["sizes"]
    assert size["library"] == "llguidance"
    assert size["missing"] == []
    assert 1 < size["mib"] < 100
    assert size["import_s"] > 0


def test_what_jaxllm_requires_anyway_weighs_nothing():
    assert weight("numpy", closure("jaxllm")) == (0, [])


def test_ignoring_and_being_too_strict_are_told_apart():
    tokenizer = grammar_mask.default_tokenizer()
    ours, raw = JaxLLM(tokenizer), LLGuidance(tokenizer)
    typo = {"type": "string", "maxLenght": 1}
    assert grammar_mask.verdict(Feature("", typo, '"a"', '"ab"'), raw, tokenizer) == "IGNORED"
    assert grammar_mask.verdict(Feature("", typo, '"a"', '"ab"'), ours, tokenizer) == "refused"
    assert grammar_mask.verdict(Feature("", {"type": "integer"}, "1.0", "1.5"), ours, tokenizer) == "too strict"
    assert grammar_mask.verdict(Feature("", {"type": "integer"}, "1", "1.5"), raw, tokenizer) == "enforced"


def test_a_text_that_the_grammar_refuses_cannot_be_timed():
    tokenizer = grammar_mask.default_tokenizer()
    case = grammar_mask.Case("wrong", {"choice": ["yes", "no"]}, "maybe")
    with pytest.raises(RuntimeError, match="refused"):
        grammar_mask.measure(case, JaxLLM(tokenizer), tokenizer, 1)
