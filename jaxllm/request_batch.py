"""``RequestBatch``: the requests of one call, run to their end together; other requests of the engine advance too."""

from __future__ import annotations

import collections
import logging
from collections.abc import Generator, Iterator, Sequence
from typing import Any, cast

from jaxllm.beam_search import BeamSearchParams
from jaxllm.engine.collector import Collector
from jaxllm.engine.core import Engine, Inbox
from jaxllm.errors import RequestError
from jaxllm.inputs import Unusable, failed_output
from jaxllm.interrupt import HeldInterrupts, InterruptFlag
from jaxllm.outputs import RequestOutput
from jaxllm.progress import Bar, ProgressBar
from jaxllm.sampling_params import SamplingParams

logger = logging.getLogger("jaxllm")


class RequestBatch:
    """Requests by their place in the call. Whoever stops using one before its end must ``abort`` it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._inbox: Inbox = collections.deque()
        self._places: dict[str, int] = {}

    @property
    def places(self) -> list[int]:
        """The places of all requests that were added."""
        return list(self._places.values())

    def place(self, collector: Collector) -> int:
        """Which of the call's prompts a collector belongs to."""
        return self._places[collector.request.request_id]

    def add(self, place: int, prompt: Any, params: SamplingParams | BeamSearchParams) -> None:
        """Queue a request; raises if it can never run."""
        with HeldInterrupts():  # a request whose id was not noted would run on for nobody
            self._places[self._engine.add_request(prompt, params, inbox=self._inbox)] = place

    def run(self, interrupt: InterruptFlag) -> Iterator[Collector]:
        """Step until all requests are done, yielding each as it progresses; aborts what is left when interrupted."""
        unfinished = set(self._places)
        try:
            while unfinished and not interrupt.is_set:
                with interrupt.guard():
                    self._engine.advance_until(self._inbox)
                while self._inbox:
                    collector = self._inbox.popleft()
                    if collector.request.finished:
                        unfinished.discard(collector.request.request_id)
                    yield collector
            if unfinished and len(self._places) > 1:
                done, total = len(self._places) - len(unfinished), len(self._places)
                logger.warning("interrupted: %d of %d requests are finished, the others end here", done, total)
        except KeyboardInterrupt:
            if interrupt.is_set:
                raise  # the second one
            logger.warning("interrupted: unfinished requests end here")
        finally:
            self._abort(unfinished)
        yield from self._inbox

    def abort(self) -> None:
        """End what is unfinished."""
        self._abort(self._places)

    def _abort(self, request_ids: Any) -> None:
        with HeldInterrupts():
            for request_id in list(request_ids):
                self._engine.abort(request_id)


def complete(engine: Engine, prompts: Sequence[Any], params: Sequence[SamplingParams | BeamSearchParams], *,
             use_tqdm: Bar, raise_on_error: bool) -> list[RequestOutput]:
    """Run prompts to their end; the outputs in their order. See ``LLM.generate``."""
    batch = RequestBatch(engine)
    outputs: list[RequestOutput | None] = [None] * len(prompts)
    interrupt = InterruptFlag()
    try:
        with interrupt.guard():
            for place, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
                try:
                    if isinstance(prompt, Unusable):
                        raise prompt.error
                    batch.add(place, prompt, wanted)
                except Exception as error:
                    if raise_on_error:
                        error.add_note(f"prompts[{place}] of {len(prompts)}")
                        raise
                    outputs[place] = failed_output(prompt, place, error)
            with ProgressBar(sum(params[place].n for place in batch.places), shown=use_tqdm) as bar:
                for collector in batch.run(interrupt):
                    bar.update(collector)
                    if collector.request.finished:
                        outputs[batch.place(collector)] = collector.output()
    except BaseException:
        batch.abort()
        raise
    results = [output for output in outputs if output is not None]
    for output in results:
        if raise_on_error and output.error is not None:
            raise RequestError(output)
    return results


def stream(engine: Engine, prompts: Sequence[Any], params: Sequence[SamplingParams]) -> Generator[RequestOutput]:
    """Run prompts, yielding outputs as they grow. See ``LLM.stream``."""
    batch = RequestBatch(engine)
    try:
        for place, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
            batch.add(place, prompt, wanted)
    except BaseException:
        batch.abort()
        raise
    outputs = _outputs(batch)
    next(outputs)  # a generator that never ran has no end to abort in
    return outputs


def _outputs(batch: RequestBatch) -> Generator[RequestOutput]:
    """Yields nothing of use the first time."""
    try:
        yield cast(RequestOutput, None)
        for collector in batch.run(InterruptFlag()):
            yield collector.output()
    finally:
        batch.abort()
