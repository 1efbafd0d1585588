"""``ResultsFile``: results on disk, one whole line each, of one writer at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any, BinaryIO, Protocol

from jaxllm.batch.lines import decode
from jaxllm.batch.lock import lock
from jaxllm.batch.record import FIRST_BYTES, HEADER, Record, encode
from jaxllm.errors import ParameterError


class Results(Protocol):
    """Where results go."""

    def append(self, record: Record) -> None:
        """Add a result; it is there when this returns."""


class ResultsStream:
    """Results that go to a stream and are not seen again."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def append(self, record: Record) -> None:
        """Add a result; it has left this process when this returns."""
        self._stream.write(encode(record))
        self._stream.flush()


class ResultsFile:
    """A results file, open for appending and locked against other processes; made if it is not there.

    Raises ``ParameterError`` for what is no regular file or is being written by someone else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if os.path.exists(path) and not os.path.isfile(path):
            raise ParameterError("results", str(path), "a regular file, or an open binary stream (- on the command "
                                 "line is standard output)")
        self.path = path
        self._file: IO[Any] = open(path, "ab", buffering=0)  # noqa: SIM115 (open until close)
        if not lock(self._file):
            self._file.close()
            raise ParameterError("results", str(path), "a file that nobody else is writing: another run has it open")

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        self.close()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it."""
        return os.path.getsize(self.path) == 0

    def read(self) -> Iterator[tuple[int, Record]]:
        """The whole lines with their numbers, from 1; ``ParameterError`` for a line that is no result.

        What is left of a last line that was cut off is passed over.
        """
        with open(self.path, "rb") as file:
            for number, content in enumerate(file, start=1):
                if content.endswith(b"\n"):
                    yield number, self._record(number, content)
                elif not _may_begin_result(content):
                    raise self._stranger(number)

    def cut_partial_line(self) -> int:
        """Remove what is left of a last line that was cut off; how many bytes it had."""
        with open(self.path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            length = end - _end_of_last_line(file, end)
        if length:
            self._file.truncate(end - length)
        return length

    def append(self, record: Record) -> None:
        """Add a result; it survives this process from here on. An ``OSError`` may leave part of it."""
        rest = memoryview(encode(record))
        while rest:
            rest = rest[self._file.write(rest):]

    def close(self) -> None:
        """Bring everything to the disk and let others have the file."""
        if not self._file.closed:
            try:
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    def _record(self, number: int, content: bytes) -> Record:
        try:
            record = decode(content)
        except ParameterError:
            raise self._stranger(number) from None
        if not all(isinstance(record.get(name), kind) for name, kind in HEADER.items()) or "error" not in record:
            raise self._stranger(number)
        return record

    def _stranger(self, number: int) -> ParameterError:
        return ParameterError("results", str(self.path), f"a new file, or one of a batch: its line {number} is no "
                              "result of a batch")


def _may_begin_result(content: bytes) -> bool:
    return content.startswith(FIRST_BYTES) or FIRST_BYTES.startswith(content)


def _end_of_last_line(file: IO[bytes], end: int) -> int:
    """The offset behind the last newline, found from the end."""
    while end:
        start = max(end - (1 << 16), 0)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
