"""``Engine``: the loop. Requests go in, steps are planned and run, outputs come out; all in the caller's process."""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jaxllm.beam_search import BeamSearchParams
from jaxllm.checks import check_integer
from jaxllm.config import EngineConfig
from jaxllm.engine.admission import Admission
from jaxllm.engine.arrivals import Arrivals
from jaxllm.engine.beam_admission import prepare_search
from jaxllm.engine.beam_collector import BeamCollector
from jaxllm.engine.collector import Collector
from jaxllm.engine.lockstep import LockstepOutcomes, LockstepScheduler
from jaxllm.engine.loop import ModelWeights, StepLoop, StepRunner, notify
from jaxllm.engine.prompts import Prompt
from jaxllm.engine.replica import Replica
from jaxllm.engine.request import Request
from jaxllm.engine.router import Router
from jaxllm.engine.scheduler import Scheduler
from jaxllm.engine.seeds import derived_seed
from jaxllm.engine.stats import EngineStats
from jaxllm.engine.stats_log import StatsLog
from jaxllm.errors import EngineError, ParameterError
from jaxllm.interrupt import HeldInterrupts
from jaxllm.outputs import RequestOutput
from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import Tokenizer

Inbox = collections.deque[Collector]
"""Where a caller finds the collectors of its requests that progressed."""


class Engine:
    """Continuous batching, step by step: ``add_request``, then ``step`` while ``has_unfinished``.

    Safe to call from several threads; one step runs at a time. Not in a process forked from the one that made it.
    ``KeyboardInterrupt`` is raised where it leaves the engine whole: never between two updates that belong together.

    runner: or one for each replica of the model, which share the requests (``Router``). They have the same weights, and
        a request runs on one of them from its beginning to its end, with the results that it has on any. The steps of
        replicas are independent of each other: all run at once, and ``step`` completes one of one replica. When the
        state of a replica is lost, so are its requests; if it cannot be made anew, the others get all that come.
    config: the sizes of each replica.
    in_order: take the steps of replicas in turns, in place of as they come: for several processes that have to decide
        alike.
    lockstep: where replicas take every step together: what runs it. An exception in one ends the requests of all that
        took part.
    """

    def __init__(self, runner: StepRunner | Sequence[StepRunner], config: EngineConfig,
                 tokenizer: Tokenizer | None = None, eos_token_ids: Iterable[int] = (),
                 stats_log: StatsLog | None = None, *, generates: bool = True, in_order: bool = False,
                 lockstep: StepRunner | None = None) -> None:
        self.config = config
        self._generates = generates
        self.tokenizer = tokenizer
        self.eos_token_ids = frozenset(eos_token_ids)
        self._process = os.getpid()
        self._lock = threading.RLock()
        # Held, inside _lock, while a step's results are recorded: outputs can be made while the next step runs.
        self._bookkeeping = threading.RLock()
        runners = runner if isinstance(runner, Sequence) else [runner]
        self.replicas = [Replica(each, config, self._bookkeeping, self._ended) for each in runners]
        self._lockstep = lockstep
        if lockstep is not None:
            self._take_steps_together(lockstep)
        self._router = Router(len(runners), config.block_size, config.num_blocks,
                              enable_prefix_caching=config.enable_prefix_caching)
        self._replica_of: dict[str, Replica] = {}
        self._arrivals = Arrivals([replica.loop for replica in self.replicas], in_order=in_order)
        self._admission = Admission(config, tokenizer, self.eos_token_ids)
        self._numbers = itertools.count()
        self._num_added = 0
        self._asleep = False
        self._has_weights = True
        self._stats_log = stats_log

    def _take_steps_together(self, runner: StepRunner) -> None:
        # Of plans of all replicas, which the loop hands on and does not look into.
        scheduler: Any = LockstepScheduler([replica.scheduler for replica in self.replicas])
        outcomes: Any = LockstepOutcomes([replica.outcomes for replica in self.replicas])
        loop = StepLoop(runner, scheduler, outcomes, self._bookkeeping, overlap=self.config.overlap)
        for replica in self.replicas:
            replica.loop = loop

    @property
    def scheduler(self) -> Scheduler:
        """The first replica's."""
        return self.replicas[0].scheduler

    @property
    def _runner(self) -> StepRunner:
        return self.replicas[0].runner

    def add_request(self, prompt: Prompt, params: SamplingParams | BeamSearchParams | None = None, *,
                    request_id: str | None = None, inbox: Inbox | None = None) -> str:
        """Queue a request; returns its id. ``ParameterError`` if it can never run; nothing is queued then.

        A mapping may hold both ``prompt_token_ids``, which are used, and ``prompt``, which is then only reported back.
        params: with ``BeamSearchParams`` the request's outputs are ``BeamSearchOutput``s.
        inbox: is given the request's collector whenever the request progresses, whoever runs the step.
        """
        self._require_own_process()
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams | BeamSearchParams):
            raise ParameterError("sampling_params", params, "a SamplingParams or a BeamSearchParams")
        if not self._generates and (isinstance(params, BeamSearchParams) or not params.reports_hidden_state):
            raise ParameterError("model", "a model without a language model's head", "one with it, to generate or to "
                                 "score texts; this one is for LLM.embed or LLM.reward")
        if request_id is not None and not isinstance(request_id, str):
            raise ParameterError("request_id", request_id, "a string or None")
        if isinstance(params, BeamSearchParams):
            make = prepare_search(prompt, params, self.config, self.tokenizer, self.eos_token_ids)
        else:
            make = self._admission.prepare(prompt, params)
        with self._lock, HeldInterrupts():
            self._require_awake()
            seed = None if self.config.seed is None else derived_seed(self.config.seed, self._num_added)
            request = make(self._new_id() if request_id is None else request_id, seed)
            if isinstance(params, BeamSearchParams):
                collector: Collector = BeamCollector(request, params, self.tokenizer, self._bookkeeping, inbox)
            else:
                collector = Collector(request, self.tokenizer, self._bookkeeping, inbox)
            replica = self._assign(request)
            try:
                replica.outcomes.add(collector)
            except BaseException:
                self._ended(request)
                raise
            self._num_added += 1
        return request.request_id

    def _assign(self, request: Request) -> Replica:
        """The replica that a request goes to."""
        if request.request_id in self._replica_of:
            raise ParameterError("request_id", request.request_id, "an id that no unfinished request has")
        number = self._router.route(request)
        if number is None:
            raise EngineError(f"the device cannot be used any more: {self.replicas[0].loop.lost}")
        replica = self._replica_of[request.request_id] = self.replicas[number]
        replica.due = True
        return replica

    def _ended(self, request: Request) -> None:
        self._replica_of.pop(request.request_id)
        self._router.release(request.request_id)

    def has_unfinished(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._replica_of)

    def step(self) -> list[RequestOutput]:
        """Run one step; the outputs of the requests that got a token or ended in it."""
        return [collector.output() for collector in self.advance()]

    async def generate(self, prompt: Prompt, params: SamplingParams | BeamSearchParams | None = None, *,
                       request_id: str | None = None) -> AsyncIterator[RequestOutput]:
        """Queue a request and yield its output as it grows, the finished one last.

        Any number of these can run at once in one event loop; steps run in worker threads, each advancing all
        requests. Leaving the iteration early aborts the request.
        """
        inbox: Inbox = collections.deque()
        request_id = self.add_request(prompt, params, request_id=request_id, inbox=inbox)
        try:
            while True:
                await asyncio.to_thread(self.advance_until, inbox)
                output = inbox[-1].output()
                inbox.clear()
                yield output
                if output.finished:
                    return
        finally:
            self.abort(request_id)

    def advance_until(self, inbox: Inbox) -> None:
        """Run steps until something is in ``inbox``."""
        while not inbox:
            with self._lock:
                if not inbox and not self.advance() and not self.has_unfinished() and not inbox:
                    raise EngineError("the request is gone and left no output")

    def advance(self) -> list[Collector]:
        """``step`` without making the outputs: the collectors of the requests that got a token or ended.

        An exception in the middle (out of memory, an interrupt) ends the requests of its step with an error and leaves
        the engine usable. Ordinary exceptions are reported in those requests' outputs; others, like
        ``KeyboardInterrupt``, are raised again.
        """
        self._require_own_process()
        with self._lock, HeldInterrupts() as interrupts:
            if self._stats_log is not None and self.has_unfinished():
                self._stats_log.begin_step()
            progressed = self._turn(interrupts)
            if self._stats_log is not None and progressed:
                self._stats_log.end_step(self.stats, idle=not self.has_unfinished())
            return progressed

    def _turn(self, interrupts: HeldInterrupts) -> list[Collector]:
        """Complete a step of the one replica, or of one of them, while all have steps to run."""
        if len(self.replicas) == 1 or self._lockstep is not None:
            return self._complete(0, interrupts, None)
        for number, replica in enumerate(self.replicas):
            if replica.due:
                replica.loop.begin(interrupts)
                replica.due = False
                if replica.loop.is_stuck:
                    return self._complete(number, interrupts, None)
        arrived = self._arrivals.next(interrupts)
        return [] if arrived is None else self._complete(arrived[0], interrupts, arrived[1])

    def _complete(self, number: int, interrupts: HeldInterrupts, fetch: Callable[[], Any] | None) -> list[Collector]:
        loop = self.replicas[number].loop
        try:
            return loop.turn(interrupts) if fetch is None else loop.complete(interrupts, fetch)
        finally:
            self.replicas[number].due = True
            for each, replica in enumerate(self.replicas):
                if replica.loop.lost is not None:
                    self._router.lose(each)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request; its output so far, or ``None`` if no such request is unfinished."""
        with self._lock, self._bookkeeping, HeldInterrupts():
            replica = self._replica_of.get(request_id)
            collector = None if replica is None else replica.outcomes.abort(request_id)
            if replica is None or collector is None:
                return None
            replica.due = True
            replica.loop.discard_unwanted()
            notify([collector])
            return collector.output()

    @property
    def params(self) -> Any:
        """The model's parameters, a nested dict of arrays in the model's own layout; in an engine that was made of
        parameters in another one, of their arrays (``RowParts``, ``StackedLayer``)."""
        return self._weights[0].params

    def update_params(self, params: Any) -> None:
        """Take other parameters of the model, in any of the layouts of ``jaxllm.weights.trees``; nothing is compiled.

        Arrays are used as they are where they are in the engine's form and dtype (``LLM.from_params`` makes an engine
        in a trainer's), and converted where not. No cached prefix outlives the change. ``ParameterError`` lists all
        that does not fit, and changes nothing; ``EngineError`` while requests are unfinished.
        """
        with self._lock, HeldInterrupts():
            self._require_idle("update_params")
            first, *others = self._weights
            first.replace(params)
            for weights in others:
                weights.take_over(first)
            self._has_weights = True
            self._forget_weights()

    def sleep(self, level: int = 1) -> None:
        """Give back the memory of the KV cache, and on accelerators of the weights.

        level: 1 keeps the weights in host memory, where a CPU has them anyway; 2 drops them. ``EngineError`` while
        requests are unfinished. Requests are refused until ``wake_up``, and after level 2 until ``update_params``.
        """
        check_integer("level", level, 1, 2)
        with self._lock, HeldInterrupts():
            self._require_idle("sleep")
            self._forget_weights()
            for replica in self._usable:
                # What the others have, the first one keeps for them.
                replica.runner.sleep(level if replica is self._usable[0] else 2)
            self._asleep, self._has_weights = True, self._has_weights and level == 1

    def wake_up(self) -> None:
        """End ``sleep``, with an empty cache."""
        with self._lock, HeldInterrupts():
            if self._asleep:
                for replica in self._usable:
                    replica.runner.wake_up()
                if self._has_weights:
                    first, *others = self._weights
                    for weights in others:
                        weights.take_over(first)
                self._asleep = False

    @property
    def _usable(self) -> list[Replica]:
        """Those that are here and have not been lost."""
        return [replica for replica in self.replicas
                if replica.loop.lost is None and replica.runner.weights is not None]

    @property
    def _weights(self) -> list[ModelWeights]:
        """Those of usable replicas."""
        return [weights for replica in self._usable if (weights := replica.runner.weights) is not None]

    def _forget_weights(self) -> None:
        for replica in self.replicas:
            replica.blocks.bump_weight_version()
        self._router.forget_prefixes()

    @property
    def is_sleeping(self) -> bool:
        """Whether ``sleep`` was called and ``wake_up`` was not."""
        return self._asleep

    def _require_own_process(self) -> None:
        if os.getpid() != self._process:
            raise EngineError("the engine cannot run in a process forked from the one that made it, as threads of JAX "
                              "are missing there: make an LLM in that process, started with multiprocessing's 'spawn'")

    def _require_idle(self, name: str) -> None:
        if self.has_unfinished():
            raise EngineError(f"{name} needs an engine without unfinished requests: run them to the end, or abort them")

    def _require_awake(self) -> None:
        if self._asleep:
            raise EngineError("the engine sleeps: call wake_up first")
        if not self._has_weights:
            raise EngineError("the engine has no weights since it slept at level 2: call update_params first")

    def compile_all(self) -> None:
        """Compile every program that any batch can need."""
        with ThreadPoolExecutor(len(self.replicas), "compile") as pool:
            runners = [replica.runner for replica in self.replicas] if self._lockstep is None else [self._lockstep]
            list(pool.map(lambda runner: runner.compile_all(), runners))

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        with self._lock, HeldInterrupts():
            for replica in self.replicas:
                replica.blocks.reset_prefix_cache()
            self._router.forget_prefixes()

    def stats(self) -> EngineStats:
        """A snapshot of the engine's load and totals."""
        with self._lock:
            return EngineStats.of([replica.scheduler for replica in self.replicas],
                                  [replica.outcomes.totals for replica in self.replicas])

    def replica_stats(self) -> list[EngineStats]:
        """The same of each replica by itself."""
        with self._lock:
            return [EngineStats.of([replica.scheduler], [replica.outcomes.totals]) for replica in self.replicas]

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless the invariants of schedulers and blocks hold."""
        for replica in self.replicas:
            replica.scheduler.check_integrity()

    def _new_id(self) -> str:
        """An id that no unfinished request has, those that callers chose included."""
        ids = (f"request-{number}" for number in self._numbers)
        return next(request_id for request_id in ids if request_id not in self._replica_of)
