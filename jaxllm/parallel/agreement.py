"""That processes which share a mesh run the same steps: each step's plan is hashed, and process 0 compares.

The comparison lags behind, in the threads of ``Lifeline``, and costs a step some microseconds. It is what ends a job
whose processes were given different requests, where otherwise each would wait in another collective.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import jax
import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.engine.loop import DispatchedStep
from jaxllm.engine.plan import StepPlan
from jaxllm.errors import ParameterError
from jaxllm.models.model import Model
from jaxllm.parallel import distributed
from jaxllm.parallel.lifeline import Lifeline, Message
from jaxllm.parallel.partition import Partition
from jaxllm.parallel.pipeline import Pipeline, stages_of
from jaxllm.parallel.results import Results
from jaxllm.runner.runner import PromptLogprobs, Runner, StepResult
from jaxllm.runner.staged_weights import StagedWeights
from jaxllm.runner.weights import Weights

KEPT_STEPS = 10_000
"""Process 0 remembers so many of its own steps, and so many of each other process that it has not come to yet."""

Step = tuple[int, int]
"""The number of an engine, in the order in which they were made, and of its step."""
Note = tuple[str, str]
"""A plan's hash, and the plan in words."""


def processes_of(partition: Partition | Pipeline) -> list[int]:
    """Those that have devices of a replica, or of one stage of it."""
    return sorted({device.process_index for stage in stages_of(partition) if stage.mesh is not None
                   for device in stage.mesh.devices.flat})


def spans_processes(replicas: Sequence[Partition | Pipeline]) -> bool:
    """Whether some of the devices of an engine are another process's of this job."""
    return jax.process_count() > 1 and any(processes_of(replica) not in ([], [jax.process_index()])
                                           for replica in replicas)


def check_members(replicas: Sequence[Partition | Pipeline]) -> None:
    """``ParameterError`` unless each process has devices of the mesh, as many as the others, and has the same stages of
    all replicas of which it has any."""
    counts = collections.Counter(device.process_index for replica in replicas for stage in stages_of(replica)
                                 if stage.mesh is not None for device in stage.mesh.devices.flat)
    found = [counts[process] for process in range(jax.process_count())]
    if len(set(found)) > 1:
        raise ParameterError("mesh", f"{sum(found)} devices", "a mesh of one process's devices alone, or of as many of "
                             f"each of the {len(found)} processes; it has {found} of them")
    for process in range(jax.process_count()):
        parts = {tuple(process in processes_of(stage) for stage in stages_of(replica)) for replica in replicas
                 if process in processes_of(replica)}
        if len(parts) > 1:
            raise ParameterError("mesh", f"{sum(found)} devices", "one in which each process has the same stages of "
                                 f"all replicas that it has devices of; process {process} has other stages of one "
                                 "replica than of another")


class Agreement:
    """What this process planned, for comparison; one for all its engines."""

    def __init__(self, line: Lifeline) -> None:
        self._line = line
        self.process = line.process
        self._num_steps: list[int] = []
        self._unsent: collections.deque[tuple[Step, Note]] = collections.deque()
        self._own: collections.OrderedDict[Step, Note] = collections.OrderedDict()
        self._theirs: dict[int, collections.OrderedDict[Step, Note]] = collections.defaultdict(collections.OrderedDict)
        line.on_message, line.on_tick = self._heard, self._tick
        distributed.say_at_end(lambda: list(self._num_steps))

    def add_engine(self) -> int:
        """The number of a new engine."""
        self._num_steps.append(0)
        return len(self._num_steps) - 1

    def note(self, engine: int, plan: StepPlan) -> int:
        """A step is about to be dispatched; its number."""
        step = engine, self._num_steps[engine]
        self._unsent.append((step, (_hash(plan), _in_words(plan))))
        self._num_steps[engine] += 1
        return step[1]

    def failed(self, error: BaseException) -> NoReturn:
        """A step failed here; the others cannot go on without it."""
        # It may be the consequence of a loss, which ends the process in a better way; of Gloo it comes as a ValueError.
        time.sleep(2)
        self._line.fail(f"failed in a step with {type(error).__name__}: {str(error)[:500]}")

    def _tick(self) -> None:
        notes = []
        while self._unsent:
            notes.append(self._unsent.popleft())
        if self._line.process == 0:
            _keep(self._own, notes)
            for process in list(self._theirs):
                self._compare(process)
        elif notes:
            self._line.send({"kind": "plans", "notes": notes})
        self._check_ended()

    def _heard(self, process: int, message: Message) -> None:
        if message["kind"] == "plans":
            _keep(self._theirs[process], [(tuple(step), tuple(note)) for step, note in message["notes"]])
            self._compare(process)

    def _compare(self, process: int) -> None:
        theirs = self._theirs[process]
        for step in [step for step in theirs if step in self._own]:
            (digest, words), (own, own_words) = theirs.pop(step), self._own[step]
            if digest != own:
                name = self._line.name
                self._line.fail(
                    f"differs from process 0 on host {self._line.hosts[0]} in step {step[1]} of engine {step[0]}: "
                    f"{name(process)} runs {words}; {name(0)} runs {own_words}. All processes must give the engine the "
                    "same requests, in the same order", process=process)

    def _check_ended(self) -> None:
        for process, steps in list(self._line.ended.items()):
            if process == self._line.process:
                continue
            for engine, own in enumerate(self._num_steps):
                theirs = steps[engine] if steps and engine < len(steps) else 0
                if own > theirs:
                    self._line.fail(f"ended its script after {theirs} steps of engine {engine}, where process "
                                    f"{self._line.process} on host {self._line.hosts[self._line.process]} runs step "
                                    f"{own}. All processes must give the engine the same requests", process=process)


@functools.cache
def agreement() -> Agreement:
    """This process's."""
    return Agreement(distributed.lifeline())


class AgreedRunner:
    """A replica of an engine that several processes share, in each of them, whether any of its devices are here or not.

    All of them plan its steps, and their plans are compared; a step that fails in one ends all. Those that have devices
    of the last stage know what came of a step, and the first of them tells the others, as soon as it is there.

    own: runs what of the replica is here, if anything. knowing: the processes that have devices of its last stage.
    """

    def __init__(self, own: Runner | None, knowing: Sequence[int]) -> None:
        self.own = own
        self._agreement = agreement()
        self._engine = self._agreement.add_engine()
        process, count = self._agreement.process, jax.process_count()
        self._others = [other for other in range(count) if other not in knowing]
        self._knows = process in knowing
        self._results = results() if self._others else None
        self._telling = ThreadPoolExecutor(1, "results") if self._others and process == knowing[0] else None

    @property
    def weights(self) -> Weights | StagedWeights | None:
        """The parameters that are here."""
        return None if self.own is None else self.own.weights

    def dispatch(self, plan: StepPlan) -> DispatchedStep:
        """As ``Runner.dispatch``."""
        step = self._agreement.note(self._engine, plan)
        result = StepResult(None, [])
        if self.own is not None:
            try:
                result = self.own.dispatch(plan)
            except Exception as error:
                self._agreement.failed(error)
        if self._telling is None:
            return _AgreedStep(functools.partial(self._fetch, step, plan, result))
        return _AgreedStep(self._telling.submit(self._fetch, step, plan, result).result)

    def _fetch(self, step: int, plan: StepPlan, result: StepResult) -> StepResult:
        try:
            fetched = result.fetch()
            if self._results is None:
                return fetched
            if not self._knows:
                return unpacked(self._results.wait(self._engine, step), plan)
            if self._telling is not None:
                self._results.send(self._engine, step, packed(fetched, plan), self._others)
            return fetched
        except Exception as error:
            self._agreement.failed(error)

    def sleep(self, level: int) -> None:
        """As ``Runner.sleep``."""
        if self.own is not None:
            self.own.sleep(level)

    def wake_up(self) -> None:
        """As ``Runner.wake_up``."""
        if self.own is not None:
            self.own.wake_up()

    def compile_all(self) -> None:
        """As ``Runner.compile_all``."""
        if self.own is not None:
            self.own.compile_all()

    def reset(self) -> None:
        """As ``Runner.reset``."""
        if self.own is not None:
            self.own.reset()

    @property
    def intact(self) -> bool:
        """As ``Runner.intact``."""
        return self.own is None or self.own.intact


@dataclasses.dataclass(frozen=True)
class _AgreedStep:
    fetch: Callable[[], StepResult]


def packed(result: StepResult, plan: StepPlan) -> Any:
    """A fetched result without the requests that it is of."""
    number_of = {sequence: number for number, sequence in enumerate(plan.sequences)}
    parts = [(number_of[part.sequence], part.first, part.count, part.offset, part.values)
             for part in result.prompt_logprobs]
    return result.sampled, parts, result.vocab_logprobs, result.hidden


def unpacked(values: Any, plan: StepPlan) -> StepResult:
    """What ``packed`` was given, with this process's own requests."""
    sampled, parts, vocab_logprobs, hidden = values
    return StepResult(sampled, [PromptLogprobs(plan.sequences[number], *rest) for number, *rest in parts],
                      vocab_logprobs, hidden)


@functools.cache
def results() -> Results:
    """This process's connections for them."""
    return Results(distributed.lifeline(), distributed.connections("results"))


def agree_on(model: Model, config: EngineConfig) -> None:
    """``DistributedError``, in all processes, unless all are about to make the same engine."""
    own = {field.name: repr(getattr(config, field.name)) for field in dataclasses.fields(config)
           if field.name != "logits_processors"}
    own |= {"model": hashlib.sha256(repr(model.config).encode()).hexdigest()[:16], "dtype": model.dtype.name,
            "logits_processors": repr(config.processor_names), "jax": jax.__version__}
    found = distributed.exchange("engine", own)
    for name in own:
        distributed.require_equal(name, [theirs[name] for theirs in found])


def _hash(plan: StepPlan) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in (plan.slot, plan.start, plan.count, plan.fed, plan.sampler_slot, plan.sampler_row,
                  plan.sampler_position, plan.table_updates, plan.block_copies, plan.swap_out, plan.swap_in,
                  plan.token_ids()):
        digest.update(len(array).to_bytes(4, "little") + np.ascontiguousarray(array).tobytes())
    for sequence in plan.admitted:
        request = sequence.request
        digest.update(request.prompt_token_ids.tobytes())
        digest.update(repr((sequence.index, request.seed, request.max_tokens, request.params)).encode())
    return digest.hexdigest()


def _in_words(plan: StepPlan) -> str:
    admitted = "".join(
        f", and begins {sequence.request.request_id} (sample {sequence.index}, prompt of "
        f"{sequence.num_prompt} tokens, seed {sequence.request.seed})" for sequence in plan.admitted[:3])
    more = f", and {len(plan.admitted) - 3} more" if len(plan.admitted) > 3 else ""
    return f"{plan.num_tokens} tokens of {len(plan.sequences)} sequences{admitted}{more}"


def _keep(notes: collections.OrderedDict[Step, Note], more: list[Any]) -> None:
    notes.update(more)
    while len(notes) > KEPT_STEPS:
        notes.popitem(last=False)
