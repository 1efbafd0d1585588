"""``run_batch``: the requests of a file, a few at a time, each result on disk as soon as it is there."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from jaxllm.batch.job import BatchJob
from jaxllm.batch.lines import Line, custom_id, decode
from jaxllm.batch.record import error_of, result_record
from jaxllm.batch.request import parse_request
from jaxllm.batch.summary import BatchSummary
from jaxllm.checks import check_integer
from jaxllm.engine.core import Inbox
from jaxllm.engine.seeds import derived_seed
from jaxllm.errors import EngineError, ParameterError
from jaxllm.interrupt import HeldInterrupts, InterruptFlag
from jaxllm.outputs import OutputError, RequestOutput
from jaxllm.progress import Bar, open_bar
from jaxllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxllm.llm import LLM

logger = logging.getLogger("jaxllm")

IN_FLIGHT_PER_SEQ = 4
"""Requests in the engine for each of ``max_num_seqs``: enough that it never waits for the next line."""


def run_batch(llm: LLM, requests: str | os.PathLike[str], results: str | os.PathLike[str] | BinaryIO,
              sampling_params: SamplingParams | None = None, *, max_in_flight: int | None = None, resume: bool = True,
              retry_failed: bool = False, model_name: str | None = None, use_tqdm: Bar = True) -> BatchSummary:
    """Run the requests of a JSONL file; append each result to another as soon as it is there (docs/batch.md).

    A request that fails has a result that says why, and the others go on. A run that ended early, however it did, is
    taken up by the next one with the same files.

    results: a path; or a binary stream, which cannot be taken up again.
    sampling_params: those that lines are laid over; ``None`` takes the model's own defaults.
    max_in_flight: requests in the engine at once, by default 4 times ``max_num_seqs`` for each replica.
    resume: go on with a results file that holds results; ``False`` refuses one.
    retry_failed: do requests whose result is an error again; the later result counts.
    model_name: the only name that lines in OpenAI's form may give as ``model``; ``None`` allows any.
    use_tqdm: as in ``LLM.generate``.

    The first Ctrl-C ends the unfinished requests and returns; a second one raises. Raises ``ParameterError`` where the
    results are not those of these requests, or another process is writing them, and changes nothing then.
    """
    defaults = llm.get_default_sampling_params() if sampling_params is None else sampling_params
    if not isinstance(defaults, SamplingParams):
        raise ParameterError("sampling_params", sampling_params, "a SamplingParams, or None")
    if max_in_flight is not None:
        check_integer("max_in_flight", max_in_flight, 1)
    with BatchJob(requests, results, defaults, resume=resume, retry_failed=retry_failed) as job:
        return run_job(llm, job, max_in_flight=max_in_flight, model_name=model_name, use_tqdm=use_tqdm)


def run_job(llm: LLM, job: BatchJob, *, max_in_flight: int | None = None, model_name: str | None = None,
            use_tqdm: Bar = True) -> BatchSummary:
    """Do what is to do of a job. See ``run_batch``."""
    config = llm.engine.config
    enough = IN_FLIGHT_PER_SEQ * config.max_num_seqs * config.data_parallel_size
    return _Run(llm, job, model_name).run(max_in_flight or enough, use_tqdm)


class _Run:
    """A job on its way through an engine."""

    def __init__(self, llm: LLM, job: BatchJob, model_name: str | None) -> None:
        self._llm, self._engine, self._job = llm, llm.engine, job
        self._model_name = model_name
        self._inbox: Inbox = collections.deque()
        self._in_flight: dict[str, tuple[Line, str | None]] = {}
        self._completed = self._failed = self._num_tokens = 0
        self._said_that_outputs_may_be_long = False

    def run(self, max_in_flight: int, use_tqdm: Bar) -> BatchSummary:
        """Keep ``max_in_flight`` requests in the engine until none is left."""
        job, interrupt = self._job, InterruptFlag()
        self._bar = open_bar(use_tqdm, total=job.total, initial=job.total - job.num_to_do, desc="Batch", unit="request")
        self._began = time.perf_counter()
        with interrupt.guard(), contextlib.closing(self._bar), contextlib.closing(job.to_do()) as lines:
            try:
                while not interrupt.is_set and self._fill(lines, max_in_flight, interrupt):
                    self._engine.advance_until(self._inbox)
                    self._take()
            finally:
                self._abort()
        return job.summary(completed=self._completed, failed=self._failed, num_tokens=self._num_tokens,
                           interrupted=interrupt.is_set)

    def _fill(self, lines: Iterator[Line], max_in_flight: int, interrupt: InterruptFlag) -> bool:
        """Queue requests until there are enough or no more; whether any is unfinished."""
        while len(self._in_flight) < max_in_flight and not interrupt.is_set:
            line = next(lines, None)
            if line is None:
                break
            self._start(line)
        return bool(self._in_flight)

    def _start(self, line: Line) -> None:
        """Queue a line's request, or write down why it cannot be."""
        own: str | None = None
        try:
            fields = decode(line.content)
            found = custom_id(fields)
            if found is not None:
                self._job.check_first(found, line.number)  # a later line is not what the id stands for
            own = found
            request = parse_request(fields, self._job.defaults, self._model_name)
            prompt, params = request.encoded(self._llm), self._seeded(request.params, line)
            with HeldInterrupts():  # a request whose line was not noted would run on for nobody
                request_id = self._engine.add_request(prompt, params, inbox=self._inbox)
                self._in_flight[request_id] = line, own
        except EngineError:
            raise  # the engine takes no request at all
        except Exception as error:
            self._write(line, own, error=error_of(error))
            return
        if params.max_tokens is None and not self._said_that_outputs_may_be_long:
            self._said_that_outputs_may_be_long = True
            logger.warning("line %d sets no max_tokens, nor do the defaults: outputs may run to the end of the "
                           "context, %d tokens", line.number, self._engine.config.max_model_len)

    def _seeded(self, params: SamplingParams, line: Line) -> SamplingParams:
        """Where the engine's seed gives those of requests, the line's number counts, however many runs it takes."""
        seed = self._engine.config.seed
        return params if seed is None or params.seed is not None else params.replace(
            seed=derived_seed(seed, line.number))

    def _take(self) -> None:
        """Write down the results that are there. A request that someone else aborted has none, and is left to do."""
        while self._inbox:
            collector = self._inbox.popleft()
            if not collector.request.finished:
                continue
            found = self._in_flight.pop(collector.request.request_id, None)
            if found is None:
                continue
            output = collector.output()
            if output.error is not None or all(sample.finish_reason != "abort" for sample in output.outputs):
                self._write(*found, output=output, error=output.error)

    def _write(self, line: Line, own: str | None, *, output: RequestOutput | None = None,
               error: OutputError | None = None) -> None:
        job = self._job
        job.results.append(result_record(line.number, own, line.digest, job.defaults_digest, output=output,
                                         error=error))
        if error is None:
            self._completed += 1
        else:
            self._failed += 1
        if output is not None:
            self._num_tokens += sum(len(sample.token_ids) for sample in output.outputs)
        rate = self._num_tokens / max(time.perf_counter() - self._began, 1e-9)
        self._bar.set_postfix_str(f"{rate:.1f} tokens/s", refresh=False)
        self._bar.update(1)

    def _abort(self) -> None:
        with HeldInterrupts():
            for request_id in self._in_flight:
                self._engine.abort(request_id)
            self._in_flight.clear()
