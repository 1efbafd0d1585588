"""docs/coming-from-vllm.md says what the code does."""

from __future__ import annotations

import builtins
import dataclasses
import re
from pathlib import Path

import pytest

import jaxllm
from jaxllm import LLM, CompletionOutput, RequestOutput, SamplingParams
from jaxllm.arguments import __main__ as writer
from jaxllm.arguments.methods import MISSING

PAGE = Path(__file__).parents[1] / "docs" / "coming-from-vllm.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_code():
    renew = "python -m jaxllm.arguments --write docs/coming-from-vllm.md"
    assert writer.render(TEXT) == TEXT, f"the page is out of date: {renew}"


def test_every_table_stands_on_the_page_once():
    assert sorted(re.findall(r"<!-- table: (\w+) -->", TEXT)) == sorted(writer._TABLES)


def test_every_field_of_sampling_params_is_described():
    meanings = writer.described(SamplingParams)
    assert set(meanings) >= {field.name for field in dataclasses.fields(SamplingParams)}


def test_every_parameter_of_llm_is_described():
    meanings = writer.described(LLM)
    assert set(meanings) | {"kv_cache_memory_bytes"} >= set(writer._defaults(LLM.__init__))


def test_methods_and_names_that_the_page_mentions_exist():
    for name in re.findall(r"`(?:llm|LLM)\.(\w+)(?=[`(.])", TEXT):
        assert name == "engine" or hasattr(LLM, name), name
    imported = TEXT.partition("all come from `jaxllm` itself")[0].rpartition("Change the import.")[2]
    names = re.findall(r"`(\w+)`", imported)
    assert len(names) == 6
    for name in [*names, "best_of", *re.findall(r"`(\w+Error)`", TEXT)]:
        assert hasattr(jaxllm, name) or hasattr(builtins, name), name


def test_every_field_of_the_outputs_is_named():
    section = TEXT.partition("## Outputs")[2].partition("\n## ")[0]
    for output in (RequestOutput, CompletionOutput):
        for field in dataclasses.fields(output):
            assert f"`{field.name}`" in section, field.name


def test_methods_that_are_not_there_say_what_to_use():
    llm = LLM.__new__(LLM)
    for name, instead in MISSING.items():
        with pytest.raises(AttributeError, match=re.escape(f"{name!r}: {instead}")):
            getattr(llm, name)
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy'$"):
        _ = llm.xyzzy
    assert not any(hasattr(LLM, name) for name in MISSING)
