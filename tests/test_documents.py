"""The Python of README.md and docs/ runs as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import jaxllm
from jaxllm.batch.request import parse_request

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPET = re.compile(r"^```(python|json)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MOST_TOKENS = 4


def snippets(page, language):
    return [text for kind, text in SNIPPET.findall(page.read_text(encoding="utf-8")) if kind == language]


WITH_PYTHON = [page for page in PAGES if snippets(page, "python")]


@pytest.fixture
def few_tokens(monkeypatch):
    """Outputs of a few tokens, however many a snippet wants, so that it runs in no time."""
    construct = jaxllm.SamplingParams.__init__

    def shortened(self, **given):
        construct(self, **{**given, "max_tokens": MOST_TOKENS})

    monkeypatch.setattr(jaxllm.SamplingParams, "__init__", shortened)


def test_there_are_snippets_to_run():
    assert {"README.md", "coming-from-vllm.md", "structured-outputs.md"} <= {page.name for page in WITH_PYTHON}


@pytest.mark.sweep
@pytest.mark.parametrize("page", [pytest.param(page, id=page.name) for page in WITH_PYTHON])
def test_the_snippets_of_a_page_run_one_after_the_other(page, few_tokens, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    # What docs/batch.md shows as request lines is the file that its snippet reads.
    (tmp_path / "requests.jsonl").write_text("".join(snippets(page, "json")[:1]) or "{}\n")
    names = {"__name__": "snippet"}
    for text in snippets(page, "python"):
        exec(compile(text, str(page), "exec"), names)


def test_the_request_lines_that_are_shown_can_be_read():
    lines = snippets(ROOT / "docs" / "batch.md", "json")[0].splitlines()
    assert len(lines) > 1
    for line in lines:
        parse_request(json.loads(line), jaxllm.SamplingParams())
