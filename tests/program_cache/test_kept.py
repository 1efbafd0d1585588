"""What is kept is made once for everything that it depends on, and made again when it is damaged."""

from __future__ import annotations

import json
import logging

import jax
import pytest

from jaxllm.program_cache import fingerprint, kept, trust
from jaxllm.program_cache.entries import Entries


@pytest.fixture
def entries(tmp_path, monkeypatch):
    """The folder that everything is kept in."""
    found = Entries(tmp_path / "programs", 1 << 20)
    monkeypatch.setattr(kept, "open_entries", lambda: found)
    monkeypatch.setattr(trust, "_process", trust._Process(sources_trusted=True))
    return found


def square(number, calls):
    """The square of a number, which is kept; each number that is computed is appended to ``calls``."""
    def make():
        calls.append(number)
        return {"square": number**2}

    return kept.kept("a square", (number,), make, write=lambda value: json.dumps(value).encode(),
                     read=lambda content: {"square": json.loads(content)["square"]})


@pytest.mark.usefixtures("entries")
def test_it_is_made_once_for_each_description():
    calls = []
    assert [square(number, calls) for number in (3, 3, 4, 3, 4)] == [{"square": n} for n in (9, 9, 16, 9, 16)]
    assert calls == [3, 4]


@pytest.mark.parametrize("changed", ["flax", "sources", "kernels", "jax"])
@pytest.mark.usefixtures("entries")
def test_it_is_made_again_where_something_else_has_changed(changed, monkeypatch):
    calls = []
    square(3, calls)
    before = jax.config.jax_default_matmul_precision
    try:
        if changed == "flax":
            monkeypatch.setattr(fingerprint, "_version", lambda package: f"another {package}")
        elif changed == "sources":
            monkeypatch.setattr(fingerprint, "_source_files", lambda: "others")
        elif changed == "kernels":
            monkeypatch.setattr(fingerprint.registry, "implementations", lambda operation: ("another",))
        else:
            jax.config.update("jax_default_matmul_precision", "float32")
        square(3, calls)
        square(3, calls)
    finally:
        jax.config.update("jax_default_matmul_precision", before)
    assert calls == [3, 3]


@pytest.mark.parametrize("damage", [
    lambda entries, file: file.write_bytes(file.read_bytes()[:-1]),
    lambda entries, file: file.write_bytes(b""),
    lambda entries, file: entries.put(file.stem, b"whole, but no JSON"),
    lambda entries, file: entries.put(file.stem, b'{"cube": 27}'),
], ids=["cut", "empty", "other bytes", "another value"])
def test_what_is_damaged_is_told_of_made_again_and_replaced(entries, damage, caplog):
    calls = []
    square(3, calls)
    (file,) = entries.folder.iterdir()
    damage(entries, file)
    with caplog.at_level(logging.WARNING, "jaxllm"):
        assert square(3, calls) == {"square": 9}
    assert len(caplog.records) == 1
    assert square(3, calls) == {"square": 9}
    assert calls == [3, 3]


def test_where_sources_are_not_trusted_nothing_is_kept(entries, monkeypatch):
    calls = []
    square(3, calls)
    monkeypatch.setattr(trust, "_process", trust._Process())
    square(3, calls)
    square(4, calls)
    assert calls == [3, 3, 4]
    assert entries.contents().files == 1


@pytest.mark.usefixtures("entries")
def test_without_a_folder_it_is_made_every_time(monkeypatch):
    monkeypatch.setattr(kept, "open_entries", lambda: None)
    calls = []
    assert square(3, calls) == square(3, calls) == {"square": 9}
    assert calls == [3, 3]
