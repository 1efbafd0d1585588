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
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.engine.plan import StepPlan
from jaxllm.errors import ParameterError
from jaxllm.models.model import Model, Params
from jaxllm.parallel import distributed
from jaxllm.parallel.lifeline import Lifeline, Message
from jaxllm.parallel.partition import PlacedParams
from jaxllm.runner.programs import Programs
from jaxllm.runner.runner import Runner, StepResult

KEPT_STEPS = 10_000
"""Process 0 remembers so many of its own steps, and so many of each other process that it has not come to yet."""

Step = tuple[int, int]
"""The number of an engine, in the order in which they were made, and of its step."""
Note = tuple[str, str]
"""A plan's hash, and the plan in words."""


def spans_processes(mesh: jax.sharding.Mesh | None) -> bool:
    """Whether some of the devices are another process's of this job."""
    return mesh is not None and jax.process_count() > 1 and (
        len({device.process_index for device in mesh.devices.flat}) > 1)


def check_members(mesh: jax.sharding.Mesh | None) -> None:
    """``ParameterError`` unless each process has devices of the mesh, and as many as the others."""
    assert mesh is not None
    counts = collections.Counter(device.process_index for device in mesh.devices.flat)
    found = [counts[process] for process in range(jax.process_count())]
    if len(set(found)) > 1:
        raise ParameterError("mesh", f"{mesh.size} devices", "a mesh of one process's devices alone, or of as many of "
                             f"each of the {len(found)} processes; it has {found} of them")


class Agreement:
    """What this process planned, for comparison; one for all its engines."""

    def __init__(self, line: Lifeline) -> None:
        self._line = line
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

    def note(self, engine: int, plan: StepPlan) -> None:
        """A step is about to be dispatched."""
        step = engine, self._num_steps[engine]
        self._unsent.append((step, (_hash(plan), _in_words(plan))))
        self._num_steps[engine] += 1

    def failed(self, error: BaseException) -> NoReturn:
        """A step failed here; the others cannot go on without it."""
        if isinstance(error, jax.errors.JaxRuntimeError):
            time.sleep(2)  # it may be the consequence of a loss, which ends the process in a better way
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


class AgreedRunner(Runner):
    """The runner of a mesh of several processes: their plans are compared, and a step that fails in one ends all."""

    def __init__(self, programs: Programs, params: Params | PlacedParams) -> None:
        super().__init__(programs, params)
        self._agreement = agreement()
        self._engine = self._agreement.add_engine()

    def dispatch(self, plan: StepPlan) -> StepResult:
        """As ``Runner.dispatch``."""
        self._agreement.note(self._engine, plan)
        try:
            result = super().dispatch(plan)
        except Exception as error:
            self._agreement.failed(error)
        return _AgreedResult(**vars(result), failed=self._agreement.failed)

    def sleep(self, level: int) -> None:
        """As ``Runner.sleep``, at level 2: weights of other processes' devices cannot be moved to this one's memory."""
        if level == 1:
            raise ParameterError("level", level, "2 where the mesh has devices of several processes")
        super().sleep(level)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _AgreedResult(StepResult):
    failed: Callable[[BaseException], NoReturn]

    def fetch(self) -> StepResult:
        try:
            return super().fetch()
        except Exception as error:
            self.failed(error)


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
