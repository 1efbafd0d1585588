"""Results on disk: whole lines, one writer, half lines cut off, files of others left alone."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading

import pytest

from jaxllm import OutputError, ParameterError
from jaxllm.batch.record import encode, result_record
from jaxllm.batch.results_file import ResultsFile, ResultsStream

HOLDER = """
import sys, time
from jaxllm.batch.results_file import ResultsFile
file = ResultsFile(sys.argv[1])
print("locked", flush=True)
time.sleep(3600)
"""


def record(number, size=0):
    return result_record(number, "x" * size or None, "r", "d", error=OutputError("E", "m"))


def test_what_is_appended_is_there_at_once_and_comes_back(tmp_path):
    path = tmp_path / "results.jsonl"
    with ResultsFile(path) as file:
        assert file.is_empty
        for number in (1, 2):
            file.append(record(number))
            assert path.read_bytes().endswith(encode(record(number)))
        assert not file.is_empty
        assert list(file.read()) == [(1, record(1)), (2, record(2))]
    with ResultsFile(path) as file:
        file.append(record(3))
        assert [each["line"] for _, each in file.read()] == [1, 2, 3]


@pytest.mark.parametrize("kept", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 1 << 16, 200_000])
def test_a_half_line_at_the_end_is_cut_off_and_nothing_else(tmp_path, kept, size):
    path = tmp_path / "results.jsonl"
    whole = b"".join(encode(record(number)) for number in range(kept))
    line = encode(record(9, size))
    for length in (0, 1, 5, len(line) // 2, len(line) - 1):
        path.write_bytes(whole + line[:length])
        with ResultsFile(path) as file:
            assert [each["line"] for _, each in file.read()] == list(range(kept))
            assert file.cut_partial_line() == length
            assert path.read_bytes() == whole
            file.append(record(9))
        assert path.read_bytes() == whole + encode(record(9))


@pytest.mark.parametrize("content", [
    b"hello\n", b"hello", b'{"custom_id": "a", "prompt": "b"}\n', b'{"custom_id": "a", "prompt": "b"}', b"{}\n",
    b"[1]\n", b"\n", encode(record(1)) + b"hello", encode(record(1)) + b"\n" + encode(record(2)),
    encode(record(1)).replace(b'"line": 1', b'"line": "1"'), encode(record(1)).replace(b'"error"', b'"terror"'),
    encode(record(1))[:20] + b"\n", encode(record(1)) + b"\xff\n",
])
def test_a_file_that_holds_something_else_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes"
    path.write_bytes(content)
    with ResultsFile(path) as file, pytest.raises(ParameterError, match=r"its line \d is no result of a batch"):
        list(file.read())
    assert path.read_bytes() == content


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path):
    path = tmp_path / "results.jsonl"
    with ResultsFile(path), pytest.raises(ParameterError, match="another run has it open"):
        ResultsFile(path)
    ResultsFile(path).close()


def test_a_lock_keeps_other_processes_out_and_dies_with_its_own(tmp_path):
    path = tmp_path / "results.jsonl"
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"locked\n"
            with pytest.raises(ParameterError, match="another run has it open"):
                ResultsFile(path)
        finally:
            holder.kill()
    ResultsFile(path).close()


def test_what_is_no_regular_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", os.devnull):
        with pytest.raises(ParameterError, match="a regular file"):
            ResultsFile(path)
    with pytest.raises(FileNotFoundError):
        ResultsFile(tmp_path / "no" / "folder")


def test_writes_that_take_only_a_part_are_gone_on_with(tmp_path):
    class Slow(io.BytesIO):
        def write(self, data):
            return super().write(bytes(data[:7]))

        def fileno(self):
            return os.open(os.devnull, os.O_WRONLY)

    with ResultsFile(tmp_path / "results.jsonl") as file:
        real, file._file = file._file, Slow()
        file.append(record(1))
        assert file._file.getvalue() == encode(record(1))
        file._file = real


def test_a_stream_gets_each_result_flushed():
    reader, writer = os.pipe()
    with open(reader, "rb") as source, open(writer, "wb") as sink:
        lines = []
        thread = threading.Thread(target=lambda: lines.append(source.readline()))
        thread.start()
        ResultsStream(sink).append(record(1))
        thread.join(60)
        assert lines == [encode(record(1))]
