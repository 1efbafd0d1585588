"""What is to do of a request file, from its results; results of other requests are refused, never mixed."""

from __future__ import annotations

import io

import pytest
from batch.scripted_batch import DEFAULTS, write_requests

from jaxllm import OutputError, ParameterError
from jaxllm.batch.job import BatchJob
from jaxllm.batch.record import result_record

REQUESTS = [{"custom_id": "a", "prompt": [1]}, {"prompt": [2]}, {"custom_id": "c", "prompt": [3]}]


def open_job(folder, defaults=DEFAULTS, **options):
    return BatchJob(folder / "requests.jsonl", folder / "results.jsonl", defaults, **options)


def answer(folder, *numbers, failed=(), defaults=DEFAULTS):
    """Do the requests of these lines."""
    with open_job(folder, defaults) as job:
        for line in job.to_do():
            if line.number in numbers:
                own = {1: "a", 3: "c"}.get(line.number)
                error = OutputError("E", "m") if line.number in failed else None
                job.results.append(result_record(line.number, own, line.digest, job.defaults_digest, error=error))


def to_do(folder, defaults=DEFAULTS, **options):
    with open_job(folder, defaults, **options) as job:
        numbers = [line.number for line in job.to_do()]
        assert len(numbers) == job.num_to_do
        return numbers


@pytest.fixture
def batch(tmp_path):
    write_requests(tmp_path, *REQUESTS)
    return tmp_path


def test_what_has_a_result_is_not_to_do(batch):
    assert to_do(batch) == [1, 2, 3]
    answer(batch, 1, 3)
    assert to_do(batch) == [2]
    answer(batch, 2)
    assert to_do(batch) == []


def test_failures_are_to_do_only_when_they_are_retried_and_the_later_result_counts(batch):
    answer(batch, 1, 2, failed=[2])
    assert to_do(batch) == [3]
    with open_job(batch) as job:
        assert job.num_failed == 1
    assert to_do(batch, retry_failed=True) == [2, 3]
    with open_job(batch, retry_failed=True) as job:
        line = next(iter(job.to_do()))
        job.results.append(result_record(2, None, line.digest, job.defaults_digest))
    assert to_do(batch, retry_failed=True) == [3]


def test_requests_can_be_added_and_those_with_ids_moved(batch):
    answer(batch, 1, 2, 3)
    write_requests(batch, REQUESTS[2], REQUESTS[1], {"custom_id": "new", "prompt": [4]}, REQUESTS[0], {"prompt": [5]})
    assert to_do(batch) == [3, 5]


@pytest.mark.parametrize(("change", "message"), [
    (lambda requests: requests[1:], "has no request of its line 1, custom_id 'a'"),
    (lambda requests: [requests[0]], "has no request of its line 2, line 2"),
    (lambda requests: [requests[0], {"prompt": [9]}, requests[2]], "the request of its line 2, line 2, has changed"),
    (lambda requests: [{"custom_id": "a", "prompt": [9]}, *requests[1:]], "line 1, custom_id 'a', has changed"),
])
def test_results_of_other_requests_are_refused_and_left_as_they_are(batch, change, message):
    answer(batch, 1, 2)
    half = b'{"line": 3, "cus'
    with (batch / "results.jsonl").open("ab") as file:
        file.write(half)
    before = (batch / "results.jsonl").read_bytes()
    write_requests(batch, *change(REQUESTS))
    for _ in range(2):  # the second time too: the lock is given back
        with pytest.raises(ParameterError, match=message):
            open_job(batch)
    assert (batch / "results.jsonl").read_bytes() == before


def test_results_with_other_defaults_are_refused(batch):
    answer(batch, 1)
    with pytest.raises(ParameterError, match="made with other default sampling parameters"):
        open_job(batch, DEFAULTS.replace(temperature=0.5))
    assert to_do(batch, DEFAULTS.replace(top_p=1.0)) == [2, 3]


def test_a_half_result_is_cut_off_said_and_done_again(batch, caplog):
    answer(batch, 1, 2)
    path = batch / "results.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])  # but for its end, the last line is complete
    assert to_do(batch) == [2, 3]
    assert path.read_bytes() == whole[:whole.index(b"\n") + 1]
    assert "ended in the middle of a result" in caplog.text


def test_a_results_file_that_holds_something_can_be_refused(batch):
    assert to_do(batch, resume=False) == [1, 2, 3]
    answer(batch, 1)
    with pytest.raises(ParameterError, match="resume=False is not allowed: True, or a new results file"):
        open_job(batch, resume=False)
    assert to_do(batch) == [2, 3]


@pytest.mark.parametrize("change", [
    lambda path: path.write_bytes(path.read_bytes().replace(b"[3]", b"[4]")),
    lambda path: path.write_bytes(b"\n" + path.read_bytes()[:-1] + b" ,"),
])
def test_a_request_file_that_changes_while_it_is_read_is_an_error(batch, change):
    with open_job(batch) as job:
        change(batch / "requests.jsonl")
        with pytest.raises(ParameterError, match=r"its line \d has changed"):
            list(job.to_do())


def test_requests_added_while_it_runs_are_for_the_next_run(batch):
    with open_job(batch) as job:
        with (batch / "requests.jsonl").open("a") as file:
            file.write('{"prompt": [4]}\n')
        assert [line.number for line in job.to_do()] == [1, 2, 3]
    assert to_do(batch) == [1, 2, 3, 4]


def test_the_files_are_two_regular_files_that_are_there(batch):
    with pytest.raises(ParameterError, match="another file than that of the requests"):
        BatchJob(batch / "requests.jsonl", batch / "requests.jsonl", DEFAULTS)
    (batch / "link").symlink_to(batch / "requests.jsonl")
    with pytest.raises(ParameterError, match="another file"):
        BatchJob(batch / "requests.jsonl", batch / "link", DEFAULTS)
    with pytest.raises(ParameterError, match="a regular file: it is read twice"):
        BatchJob("/dev/null", batch / "new", DEFAULTS)
    with pytest.raises(FileNotFoundError):
        BatchJob(batch / "missing", batch / "new", DEFAULTS)
    assert not (batch / "new").exists()


@pytest.mark.parametrize("results", [None, 7, io.StringIO()])
def test_results_go_to_a_path_or_a_binary_stream(batch, results):
    with pytest.raises(ParameterError, match="a path or a binary stream"):
        BatchJob(batch / "requests.jsonl", results, DEFAULTS)


@pytest.mark.parametrize("name", ["resume", "retry_failed"])
def test_switches_are_true_or_false(batch, name):
    with pytest.raises(ParameterError, match=name):
        open_job(batch, **{name: 1})


def test_a_results_file_given_as_the_requests_of_another_is_not_overwritten(batch):
    answer(batch, 1)
    before = (batch / "requests.jsonl").read_bytes()
    with pytest.raises(ParameterError, match="is no result of a batch"):
        BatchJob(batch / "results.jsonl", batch / "requests.jsonl", DEFAULTS)
    assert (batch / "requests.jsonl").read_bytes() == before
