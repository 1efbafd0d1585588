"""Two processes with two devices each, over Gloo on this machine: they agree, and end together."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from parallel.job_requests import REQUESTS, make_engine, outputs
from tiny_folder import write_tiny_folder

from jaxllm.errors import DistributedError, ParameterError
from jaxllm.parallel import distributed

SCRIPT = Path(__file__).parent / "job_script.py"
MOST_SECONDS = 60
"""After the loss of a process the others have ended; it takes a second where its connections close."""
STARTING_SECONDS = 240


class Job:
    """Both processes of a scenario; ``failing`` is the one that fails in it."""

    def __init__(self, scenario, failing=1, folder=""):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        environment = {**os.environ, "COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "NUM_PROCESSES": "2",
                       "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu",
                       "PYTHONPATH": str(SCRIPT.parent.parent)}
        # Executables of several processes are not whole when they are loaded again (jaxlib 0.12).
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)
        self.processes = [
            subprocess.Popen([sys.executable, str(SCRIPT), scenario, str(failing), str(folder)], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env={**environment, "PROCESS_ID": str(number)})
            for number in range(2)]

    def said(self, number):
        """The next line of a process."""
        return next(_records(self.processes[number].stdout), "nothing")

    def end(self, number, seconds=MOST_SECONDS):
        """A process's exit code and what it wrote; it has to end by itself within so many seconds."""
        out, errors = self.processes[number].communicate(timeout=seconds)
        return self.processes[number].returncode, list(_records(out.splitlines())), errors

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()


def _records(lines):
    """Those that the script wrote; Gloo writes others."""
    return (json.loads(line) for line in lines if line.startswith("{"))


def name(number):
    return f"process {number} of 2 on host {socket.gethostname()}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny", num_key_value_heads=4)


def test_two_processes_give_what_one_device_gives(folder):
    with Job("same_outputs", folder=folder) as job:
        codes, lines, errors = zip(*(job.end(number, STARTING_SECONDS) for number in range(2)), strict=True)
    assert codes == (0, 0), errors
    assert lines[0][0] == lines[1][0]
    assert [end for *_, end in lines] == [{"end": 0}, {"end": 1}]
    shared = lines[0][0]
    assert shared["agreed"] == [0, 10]
    expected = outputs(make_engine(folder, seed=shared["seed"]), REQUESTS)
    assert shared["outputs"] == expected
    for _, refused, alone, _ in lines:
        wrong = ("level=1", "swap_space=1073741824", "data_parallel_size=2", "pipeline_parallel_size=2")
        assert [text.split(" is not")[0] for text in refused["refused"]] == list(wrong)
        assert alone["alone"][0][1] == expected[0][1]
    # An engine on a process's own device is its own affair.
    assert [len(alone["alone"]) for _, _, alone, _ in lines] == [1, 2]


@pytest.mark.parametrize("scenario", ["dies", pytest.param("waits_for_a_lost_one", marks=pytest.mark.sweep)])
def test_a_process_that_is_killed_ends_the_other_with_its_name(scenario):
    with Job(scenario) as job:
        assert "about_to" in job.said(1)
        assert job.end(1)[0] == -signal.SIGKILL
        died = time.monotonic()
        code, _, errors = job.end(0)
        assert time.monotonic() - died < MOST_SECONDS
    assert code == 1, errors
    assert f"jaxllm: {name(1)} is lost" in errors
    assert "Process 0 on host" in errors


@pytest.mark.sweep
def test_the_coordinators_loss_ends_the_other():
    with Job("dies", failing=0) as job:
        assert job.end(0, STARTING_SECONDS)[0] == -signal.SIGKILL
        code, _, errors = job.end(1)
    # JAX itself ends a process that lost its coordinator, and may be first.
    assert (code == 1 and f"jaxllm: {name(0)} is lost" in errors) or (
        code == -signal.SIGABRT and "Failed to send RPC to coordination service" in errors), errors


@pytest.mark.sweep
def test_a_process_that_no_longer_answers_ends_the_other_when_its_heartbeats_time_out():
    with Job("stops") as job:
        assert "about_to" in job.said(1)
        code, _, errors = job.end(0)
    assert code != 0
    assert f"{name(1)} has been silent" in errors
    assert "heartbeat" in errors


@pytest.mark.parametrize("failing", [1, pytest.param(0, marks=pytest.mark.sweep)])
def test_a_process_that_raises_ends_the_other_with_what_it_raised(failing):
    with Job("raises", failing) as job:
        assert "about_to" in job.said(failing)
        code, _, errors = job.end(failing)
        other_code, _, other_errors = job.end(1 - failing)
    assert (code, other_code) == (1, 1)
    assert "ValueError: no such file" in errors
    assert "raise_an_error" in errors  # the whole traceback is there
    assert f"jaxllm: {name(failing)} failed with ValueError: no such file: prompts.txt." in other_errors


@pytest.mark.sweep
def test_processes_that_are_given_different_requests_end_with_what_differs(folder):
    with Job("other_requests", folder=folder) as job:
        results = [job.end(number, STARTING_SECONDS) for number in range(2)]
    assert [code for code, _, _ in results] == [1, 1], results
    for _, lines, errors in results:
        assert lines[0] == {"about_to": "differ"}  # and it may have been through before it was told
        assert "All processes must give the engine the same requests" in errors
        assert f"{name(1)} differs from process 0" in errors
        assert all(f"prompt of {len(prompt)} tokens" in errors for prompt, _ in REQUESTS[1:3])


@pytest.mark.sweep
def test_a_process_that_is_given_fewer_requests_ends_the_other(folder):
    with Job("fewer_requests", folder=folder) as job:
        results = [job.end(number, STARTING_SECONDS) for number in range(2)]
    code, _, errors = results[0]
    assert code == 1, errors
    assert f"{name(1)} ended its script after " in errors
    assert "All processes must give the engine the same requests" in errors


@pytest.mark.sweep
def test_processes_that_choose_different_sizes_all_raise(folder):
    with Job("other_sizes", folder=folder) as job:
        results = [job.end(number, STARTING_SECONDS) for number in range(2)]
    for code, _, errors in results:
        assert code == 1
        assert "max_num_seqs must be the same in all processes; it is \"4\" in process 0; \"5\" in process 1" in errors


@pytest.mark.sweep
def test_initialize_after_a_backend_has_started_is_refused():
    with Job("starts_late") as job:
        for number in range(2):
            code, _, errors = job.end(number, STARTING_SECONDS)
            assert code == 1
            assert "DistributedError: initialize() must come before anything that starts a backend" in errors


def test_one_process_needs_nothing_and_is_asked_for_nothing():
    lone = distributed.initialize(num_processes=1)
    assert (lone.num_processes, lone.process_id, lone.hosts) == (1, 0, (socket.gethostname(),))
    assert distributed.initialize() is lone
    with pytest.raises(ParameterError, match=r"num_processes=2 is not allowed: 1"):
        distributed.initialize(num_processes=2)
    with pytest.raises(DistributedError, match=r"initialize\(\)"):
        distributed.lifeline()
