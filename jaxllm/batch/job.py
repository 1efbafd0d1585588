"""``BatchJob``: a request file beside its results, compared and ready to run. Nothing here needs a model."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Generator
from types import TracebackType
from typing import BinaryIO

from jaxllm.batch.index import RequestIndex
from jaxllm.batch.lines import Line, read_lines
from jaxllm.batch.record import Record, defaults_digest
from jaxllm.batch.results_file import Results, ResultsFile, ResultsStream
from jaxllm.batch.summary import BatchSummary
from jaxllm.checks import check_bool
from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams

logger = logging.getLogger("jaxllm")

_TO_DO, _DONE, _FAILED = range(3)


class BatchJob:
    """What is to be done of a request file, from what its results file holds. Close it to let others have the results.

    requests: path of the request file. It is read twice, so it cannot be a pipe.
    results: path of the results file; or a binary stream, which is only written to.
    defaults: the sampling parameters under those of the lines.
    resume: go on with a results file that holds results; ``False`` refuses one.
    retry_failed: do requests whose result is an error again.

    Raises ``ParameterError`` where the results are not those of the requests, and changes nothing then.
    """

    def __init__(self, requests: str | os.PathLike[str], results: str | os.PathLike[str] | BinaryIO,
                 defaults: SamplingParams, *, resume: bool = True, retry_failed: bool = False) -> None:
        check_bool("resume", resume)
        check_bool("retry_failed", retry_failed)
        if not os.path.isfile(requests) and os.path.exists(requests):
            raise ParameterError("requests", str(requests), "a regular file: it is read twice")
        self.requests, self.defaults = requests, defaults
        self.defaults_digest = defaults_digest(defaults)
        self._index = RequestIndex(requests)
        self._states = bytearray(len(self._index))
        self._file: ResultsFile | None = None
        if isinstance(results, str | os.PathLike):
            if os.path.exists(results) and os.path.samefile(requests, results):
                raise ParameterError("results", str(results), "another file than that of the requests")
            self._file = ResultsFile(results)
            try:
                self._compare(self._file, resume, retry_failed)
            except BaseException:
                self._file.close()
                raise
        elif isinstance(results, io.TextIOBase) or not hasattr(results, "write"):
            raise ParameterError("results", results, "a path or a binary stream")
        self.results: Results = ResultsStream(results) if self._file is None else self._file  # type: ignore[arg-type]

    def __enter__(self) -> BatchJob:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
                 ) -> None:
        self.close()

    def close(self) -> None:
        """Close the results file."""
        if self._file is not None:
            self._file.close()

    @property
    def total(self) -> int:
        """How many requests there are."""
        return len(self._states)

    @property
    def num_to_do(self) -> int:
        """How many of them have no result yet, or one that is to be replaced."""
        return self._states.count(_TO_DO)

    @property
    def num_failed(self) -> int:
        """How many have a result that is an error and stays."""
        return self._states.count(_FAILED)

    def summary(self, *, completed: int = 0, failed: int = 0, num_tokens: int = 0, interrupted: bool = False
                ) -> BatchSummary:
        """What a run came to that wrote so many results. An interrupt after the last of them ended nothing."""
        unfinished = self.num_to_do - completed - failed
        return BatchSummary(
            total=self.total, done_before=self.total - self.num_to_do, failed_before=self.num_failed,
            completed=completed, failed=failed, unfinished=unfinished, num_tokens=num_tokens,
            interrupted=interrupted and unfinished > 0)

    def to_do(self) -> Generator[Line]:
        """The lines to do, in their order, read as they are asked for."""
        for place, line in zip(range(len(self._states)), read_lines(self.requests), strict=False):
            if self._index.digest(place) != line.digest:
                raise ParameterError("requests", str(self.requests), f"a file that stays as it is while it is read: "
                                     f"its line {line.number} has changed")
            if self._states[place] == _TO_DO:
                yield line

    def check_first(self, custom_id: str, number: int) -> None:
        """Raise ``ParameterError`` unless this is the first line with the id."""
        place = self._index.find(custom_id, number)
        first = None if place is None else self._index.number(place)
        if first is not None and first != number:
            raise ParameterError("custom_id", custom_id, f"an id of one line; line {first} has it")

    def _compare(self, file: ResultsFile, resume: bool, retry_failed: bool) -> None:
        if not resume and not file.is_empty:
            raise ParameterError("resume", resume, f"True, or a new results file: {file.path} holds something")
        for number, record in file.read():
            place = self._place(file, number, record)
            failed = record["error"] is not None
            self._states[place] = _DONE if not failed else _TO_DO if retry_failed else _FAILED
        cut = file.cut_partial_line()
        if cut:
            logger.warning("%s ended in the middle of a result: %d bytes are cut off, and it is done again",
                           file.path, cut)

    def _place(self, file: ResultsFile, number: int, record: Record) -> int:
        """Where the request of a result is; ``ParameterError`` if there is none, or it is not what was answered."""
        custom_id = record["custom_id"]
        name = f"line {record['line']}" if custom_id is None else f"custom_id {custom_id!r}"
        place = self._index.find(custom_id, record["line"])
        if place is None:
            why = f"{self.requests} has no request of its line {number}, {name}"
        elif record["request"] != self._index.digest(place):
            why = f"the request of its line {number}, {name}, has changed in {self.requests}"
        elif record["defaults"] != self.defaults_digest:
            why = f"its line {number}, {name}, was made with other default sampling parameters"
        else:
            return place
        raise ParameterError("results", str(file.path), f"a new file, or one with results of these requests: {why}")
