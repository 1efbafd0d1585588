"""Two processes with two devices each, over Gloo on this machine: they agree, and end together."""

import signal
import socket
import time

import pytest
from parallel.job import MOST_SECONDS, STARTING_SECONDS, Job, name
from parallel.job_requests import REQUESTS, make_engine, outputs
from tiny_folder import write_tiny_folder

from jaxllm.errors import DistributedError, ParameterError
from jaxllm.parallel import distributed


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
    for _, alone, _ in lines:
        assert alone["alone"][0][1] == expected[0][1]
    # An engine on a process's own device is its own affair.
    assert [len(alone["alone"]) for _, alone, _ in lines] == [1, 2]


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
