"""Targets that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from jaxllm.errors import CapacityError, ParameterError
from jaxllm.quantization import output
from jaxllm.quantization.output import check_target, written_whole


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def write_folder(path, content):
    path.mkdir()
    (path / "model.safetensors").write_text(content)


def fail_half_way(target, what, error):
    with written_whole(target, 10) as partial:
        partial.write_text("half") if what == "file" else write_folder(partial, "half")
        raise error


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), ValueError("wrong"), KeyboardInterrupt()])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_ends_early_leaves_the_old_and_nothing_else(tmp_path, error, what):
    target = tmp_path / "there"
    target.write_text("old") if what == "file" else write_folder(target, "old")
    with pytest.raises(type(error)):
        fail_half_way(target, what, error)
    assert names(tmp_path) == ["there"]
    assert (target if what == "file" else target / "model.safetensors").read_text() == "old"


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_takes_the_place_of_another_as_a_whole(tmp_path, there):
    target = tmp_path / "there"
    if there:
        write_folder(target, "old")
        (target / "more.json").write_text("old")
    with written_whole(target, 10) as partial:
        write_folder(partial, "new")
        assert target.exists() == there
    assert names(tmp_path) == ["there"]
    assert names(target) == ["model.safetensors"]
    assert (target / "model.safetensors").read_text() == "new"


def test_a_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    target, rename = tmp_path / "there", os.rename
    write_folder(target, "old")

    def fails_for_the_new(source, destination):
        if str(source).endswith(".part"):
            raise PermissionError(errno.EACCES, "no")
        rename(source, destination)

    monkeypatch.setattr(output.os, "rename", fails_for_the_new)
    with pytest.raises(PermissionError), written_whole(target, 10) as partial:
        write_folder(partial, "new")
    assert names(tmp_path) == ["there"]
    assert (target / "model.safetensors").read_text() == "old"


def test_too_little_room_is_said_before_anything_is_written(tmp_path):
    with pytest.raises(CapacityError, match=r"new: 1,000,000,000,000,000 bytes are needed, and [\d,]+ are free in"), \
            written_whole(tmp_path / "new", 10**15):
        pytest.fail("it began")
    assert not names(tmp_path)


def test_room_that_ends_meanwhile_is_told(tmp_path):
    with pytest.raises(CapacityError, match=r"new: no room for its 10 bytes in .*: No space left"):
        fail_half_way(tmp_path / "new", "file", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert not names(tmp_path)


FOLDER = ("*.safetensors", "*.json")


def test_targets_are_checked(tmp_path):
    file, folder, model = tmp_path / "file", tmp_path / "folder", tmp_path / "model"
    file.write_text("")
    write_folder(folder, "old")
    write_folder(model, "the model")
    check_target(tmp_path / "new", [model], overwrite=False, replaceable=FOLDER)
    check_target(folder, [model], overwrite=True, replaceable=FOLDER)
    check_target(file, [model], overwrite=True)
    for target, settings, message in (
            (tmp_path / "a" / "b", {}, "a name in a folder that exists"),
            (file, {}, "a file that is not there yet, or overwrite"),
            (folder, {"replaceable": FOLDER}, "a folder that is not there yet, or overwrite"),
            (folder, {"overwrite": True}, "a file, which this is not"),
            (file, {"overwrite": True, "replaceable": FOLDER}, "a folder, which this is not"),
            (model, {"overwrite": True, "replaceable": FOLDER}, "another folder than the model itself"),
            (tmp_path, {"overwrite": True, "replaceable": ("*",)}, "another folder than the model itself")):
        with pytest.raises(ParameterError, match=message):
            check_target(target, [model], **{"overwrite": False, **settings})


def test_only_models_are_overwritten(tmp_path):
    write_folder(tmp_path / "home", "old")
    (tmp_path / "home" / "thesis.tex").write_text("precious")
    with pytest.raises(ParameterError, match=r"holds a model and nothing else; it has thesis\.tex"):
        check_target(tmp_path / "home", [], overwrite=True, replaceable=FOLDER)


@pytest.mark.skipif(os.name != "posix", reason="whether a process runs is asked on POSIX only")
def test_what_killed_processes_left_is_cleared_up_and_what_others_write_is_not(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    write_folder(tmp_path / f"there.{gone.pid}.old", "moved away")
    (tmp_path / f"there.{gone.pid}.part").write_text("half")
    (tmp_path / f"there.{os.getppid()}.part").write_text("another's")
    (tmp_path / "there.1.5.part").write_text("somebody's")
    with pytest.raises(KeyError):
        fail_half_way(tmp_path / "there", "folder", KeyError())
    assert names(tmp_path) == sorted(["there", "there.1.5.part", f"there.{os.getppid()}.part"])
    assert (tmp_path / "there" / "model.safetensors").read_text() == "moved away"
