"""Stages and replicas on the devices of two processes: each process has what one device gives, and ends with the other.
"""

import functools
import signal
import time

import numpy as np
import pytest
from parallel.job import MOST_SECONDS, STARTING_SECONDS, Job, name
from parallel.job_meshes import MESHES, found
from tiny_folder import write_tiny_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny", num_key_value_heads=4, num_hidden_layers=4)


@functools.cache
def one_device(folder):
    return found(folder)


@pytest.mark.parametrize("scenario", ["two_meshes", pytest.param("other_meshes", marks=pytest.mark.sweep)])
def test_every_process_has_what_one_device_gives(folder, scenario):
    with Job(scenario, folder=folder) as job:
        codes, lines, errors = job.both()
    assert codes == (0, 0), errors
    assert lines[0][:-1] == lines[1][:-1]  # to the bit
    expected = one_device(folder)
    meshes = {line["mesh"]: line for line in lines[0][:-1]}
    assert list(meshes) == (list(MESHES)[:2] if scenario == "two_meshes" else list(MESHES)[2:])
    for mesh, line in meshes.items():
        swaps = "swapping" in mesh
        for part in ("many", "awake") if swaps else ("many", "tokens", "uneven", "texts", "awake"):
            assert line[part] == expected[part], (mesh, part)
        for own, one in zip(*([] if swaps else each["numbers"] for each in (line, expected)), strict=True):
            np.testing.assert_allclose(own, one, rtol=0, atol=1e-4)
        assert all(line["replicas"]), mesh
        assert min(line["swapped"]) > 0 or not swaps, mesh


@pytest.mark.parametrize("mesh", [pytest.param("P2", marks=pytest.mark.sweep), "D2"])
@pytest.mark.parametrize("failing", [1, pytest.param(0, marks=pytest.mark.sweep)])
def test_a_process_that_is_killed_in_the_middle_ends_the_other_with_its_name(folder, mesh, failing):
    with Job(f"dies_in_{mesh}", failing, folder) as job:
        assert job.said(failing) == {"about_to": "die"}
        assert job.end(failing)[0] == -signal.SIGKILL
        died = time.monotonic()
        code, lines, errors = job.end(1 - failing)
        assert time.monotonic() - died < MOST_SECONDS
    assert {"end": 1 - failing} not in lines
    lost = code == 1 and f"jaxllm: {name(failing)} is lost" in errors
    # JAX itself ends a process that lost its coordinator, and may be first.
    assert lost or (failing == 0 and code == -signal.SIGABRT and "coordination service" in errors), errors


@pytest.mark.sweep
def test_a_mesh_of_which_a_process_has_unequal_parts_is_refused(folder):
    with Job("unequal_parts", folder=folder) as job:
        for number in range(2):
            code, lines, errors = job.end(number, STARTING_SECONDS)
            assert code == 0, errors
            assert "it has [2, 1] of them" in lines[0]["refused"]
