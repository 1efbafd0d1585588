"""docs/models.md says what the registry and the fixtures say, docs/add-a-model.md what the code does."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from models.model_table import render

from jaxllm.models.config import DecoderConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"


def test_the_table_is_that_of_the_registry():
    page = PAGE.read_text(encoding="utf-8")
    renew = "python tests/models/model_table.py --write docs/models.md"
    assert render(page) == page, f"the page is out of date: {renew}"
    assert page.count("<!-- begin families -->") == 1


def test_the_example_of_the_page_on_adding_a_model_is_what_is_there():
    page = (ROOT / "docs" / "add-a-model.md").read_text(encoding="utf-8")
    family, line, entry = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    assert family == (ROOT / "jaxllm/models/families/ernie4_5.py").read_text(encoding="utf-8")
    assert line in (ROOT / "jaxllm/models/registry.py").read_text(encoding="utf-8")
    assert entry in (ROOT / "tests/fixtures/make_fixtures.py").read_text(encoding="utf-8")
    others = {"rotate_half", "DecoderConfig", "RopeConfig", "MoEConfig", "LatentConfig"}
    named = set(re.findall(r"`(\w+)`", page.split("## 2")[0])) - others
    assert named == {field.name for field in dataclasses.fields(DecoderConfig)} & named
    switches = {field.name for field in dataclasses.fields(DecoderConfig) if field.default is not dataclasses.MISSING}
    assert named >= switches - {"position_offset", "embedding_norm", "shard", "exchange"}
