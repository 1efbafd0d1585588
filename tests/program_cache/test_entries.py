"""Entries come back as they were put, stay within their limit, and survive every accident to their folder."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from jaxllm.program_cache.entries import Entries

MEGABYTE = 1 << 20


@pytest.fixture
def entries(tmp_path):
    return Entries(tmp_path / "folder", MEGABYTE)


def noise(size, seed=0):
    """Bytes that do not compress."""
    return np.random.default_rng(seed).bytes(size)


def only_file(entries):
    (file,) = entries.folder.iterdir()
    return file


def test_what_was_put_comes_back(entries):
    assert entries.get("a") is None
    for value in (b"", b"one", noise(1000)):
        entries.put("a", value)
        assert entries.get("a") == value
    entries.put("b", b"another")
    assert entries.get("b") == b"another"
    assert entries.contents().files == 2
    entries.delete("b")
    entries.delete("b")
    assert entries.get("b") is None


def test_the_folder_is_for_its_owner_alone(entries):
    entries.put("a", b"value")
    assert stat.S_IMODE(entries.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("damage", [
    lambda content: b"", lambda content: content[:20], lambda content: content[:-1], lambda content: content + b"x",
    lambda content: b"other" + content[5:], lambda content: content[:60] + bytes([content[60] ^ 1]) + content[61:],
    lambda content: content[:10] + bytes([content[10] ^ 1]) + content[11:],
], ids=["empty", "header only", "cut", "longer", "another kind", "a bit of the content", "a bit of the checksum"])
def test_a_damaged_entry_is_deleted_told_of_and_replaced(entries, damage, caplog):
    entries.put("a", noise(500))
    file = only_file(entries)
    file.write_bytes(damage(file.read_bytes()))
    with caplog.at_level(logging.WARNING, "jaxllm"):
        assert entries.get("a") is None
    assert "damaged" in caplog.text
    assert not file.exists()
    entries.put("a", b"again")
    assert entries.get("a") == b"again"


def test_an_entry_under_the_name_of_another_is_damaged(entries):
    entries.put("a", b"of a")
    file = only_file(entries)
    file.with_stem("b").write_bytes(file.read_bytes())
    assert entries.get("b") is None
    assert entries.get("a") == b"of a"


def test_the_least_recently_used_go_first_and_the_limit_holds(entries):
    for number in range(9):
        entries.put(str(number), noise(100_000, number))
        os.utime(entries.folder / f"{number}.program", (number, number))
    assert entries.get("0") is not None  # used again
    for number in range(9, 12):
        entries.put(str(number), noise(100_000, number))
        assert entries.contents().bytes <= MEGABYTE
    assert [name for name in map(str, range(12)) if entries.get(name) is None] == ["1", "2"]


def test_what_is_larger_than_the_limit_is_not_kept_and_pushes_nothing_out(entries):
    entries.put("small", b"value")
    entries.put("large", noise(2 * MEGABYTE))
    assert entries.get("large") is None
    assert entries.get("small") == b"value"


def test_what_a_killed_process_left_behind_is_cleared_away_and_what_is_being_written_is_not(entries):
    entries.put("a", b"value")
    old, new = entries.folder / "x.tmp", entries.folder / "y.tmp"
    old.write_bytes(b"half"), new.write_bytes(b"half")
    hours_ago = time.time() - 10_000
    os.utime(old, (hours_ago, hours_ago))
    entries.put("b", b"value")
    assert (old.exists(), new.exists()) == (False, True)


def test_a_full_disk_costs_the_entry_and_is_told_once(entries, monkeypatch, caplog):
    entries.put("a", b"value")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "jaxllm"):
        patch.setattr(os, "replace", full)
        entries.put("b", b"value")
        entries.put("c", b"value")
    assert [record.getMessage() for record in caplog.records] == [
        "the compilation cache cannot be written to: [Errno 28] No space left on device"]
    assert entries.get("a") == b"value"
    assert [file.name for file in entries.folder.iterdir()] == ["a.program"]


def test_a_folder_that_cannot_be_made_costs_the_entries_only(tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"")
    entries = Entries(tmp_path / "file" / "folder", MEGABYTE)
    with caplog.at_level(logging.WARNING, "jaxllm"):
        entries.put("a", b"value")
        assert entries.get("a") is None
        entries.put("b", b"value")
    assert len(caplog.records) == 1


def test_a_read_only_folder_is_read(entries, monkeypatch, caplog):
    entries.put("a", b"value")

    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    # Permissions do not bind root, whom tests may run as.
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with caplog.at_level(logging.WARNING, "jaxllm"):
        assert entries.get("a") == b"value"
        assert caplog.records == []
        entries.put("b", b"value")
    assert len(caplog.records) == 1


_WRITER = """
import sys
from pathlib import Path
from jaxllm.program_cache.entries import Entries
entries = Entries(Path(sys.argv[1]), 200_000)
for number in range(300):
    name = str(number % 7)
    value = entries.get(name)
    assert value in (None, name.encode() * 50_000 + bytes(range(256))), name
    entries.put(name, name.encode() * 50_000 + bytes(range(256)))
    if number % 5 == 0:
        entries.delete(name)
"""


def test_processes_that_read_write_and_evict_at_once_only_ever_see_whole_entries(tmp_path):
    processes = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path / "folder")], stderr=subprocess.PIPE)
                 for _ in range(3)]
    for process in processes:
        errors = process.communicate()[1]
        assert (process.returncode, errors) == (0, b"")
