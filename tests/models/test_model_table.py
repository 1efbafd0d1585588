"""docs/models.md says what the registry and the fixtures say."""

from __future__ import annotations

from pathlib import Path

from models.model_table import render

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_table_is_that_of_the_registry():
    page = PAGE.read_text(encoding="utf-8")
    renew = "python tests/models/model_table.py --write docs/models.md"
    assert render(page) == page, f"the page is out of date: {renew}"
    assert page.count("<!-- begin families -->") == 1
