"""The measurements of ``compare.py``: engines take turns at the same work, one at a time, the others paused."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness import Work, Workload, load_workload
from peers.engines import (
    BLOCKS,
    BLOCKS_A8,
    HF,
    INT8,
    LLAMACPP,
    LLAMACPP_Q4,
    OPENVINO,
    OPENVINO_Q4,
    ORT,
    OURS,
    PLAIN,
    SYNC,
    VLLM,
    WIDE,
    XLA,
    EngineSpec,
)
from peers.worker import EngineFailed, Worker

START = "start"
"""The name under which starts are measured, beside the workloads."""
FIRST_PROMPT, FILL = "W1", "W2"
"""What starts are timed with, and what memory is measured with after them."""
START_ENGINES = (OURS, VLLM, OPENVINO)
KV_SIZES = (4, 1)
"""GiB of the KV caches whose engines' memory is measured."""

Figures = dict[str, float | None]
Key = tuple[str, str, str]
"""An engine, a workload and a pass."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """One way to run a workload, in each turn after the passes before it.

    cold: whether caches of prefixes are emptied before. max_tokens: in place of the workload's.
    """

    name: str
    cold: bool = True
    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_tokens: int | None = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which engines run a workload by default, and how."""

    engines: tuple[str, ...]
    passes: tuple[Pass, ...] = (Pass("cold"),)


W5_SAMPLING = dict(load_workload("W5").sampling)
PLANS = {
    "W1": Plan((OURS, PLAIN, SYNC, XLA, INT8, BLOCKS, BLOCKS_A8, HF, VLLM, OPENVINO, OPENVINO_Q4, LLAMACPP, LLAMACPP_Q4,
                ORT)),
    "W1r": Plan((OURS, PLAIN)),
    "W2": Plan((OURS, PLAIN, SYNC, XLA, INT8, BLOCKS, BLOCKS_A8, VLLM, OPENVINO, OPENVINO_Q4, LLAMACPP_Q4)),
    "W3": Plan((OURS, INT8, VLLM, OPENVINO), (Pass("cold"), Pass("warm", cold=False))),
    "W4": Plan((OURS, INT8, XLA, HF, VLLM, OPENVINO, LLAMACPP, ORT)),
    "W5": Plan((WIDE,), (
        Pass("greedy", sampling={"n": W5_SAMPLING["n"]}), Pass("sampled", sampling=W5_SAMPLING),
        Pass("one token", sampling={"n": W5_SAMPLING["n"]}, max_tokens=1))),
}


@dataclasses.dataclass
class Results:
    """What was measured. runs: the figures of every timed run. problems: what could not be, by engine and workload,
    and why. tokens: what was generated in a pass's last run."""

    runs: dict[Key, list[Figures]] = dataclasses.field(default_factory=dict)
    problems: dict[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    tokens: dict[Key, list[list[int]]] = dataclasses.field(default_factory=dict)

    def add(self, key: Key, figures: Figures) -> None:
        """Note one run."""
        self.runs.setdefault(key, []).append(figures)

    def median(self, key: Key, figure: str) -> float | None:
        """Of all runs; ``None`` if they have no such figure."""
        values = [value for run in self.runs.get(key, []) if (value := run.get(figure)) is not None]
        return statistics.median(values) if values else None

    def agreement(self, key: Key) -> float | None:
        """The share of tokens before the first one that differs from jaxllm's; ``None`` if either is not known."""
        ours, theirs = self.tokens.get((OURS, *key[1:])), self.tokens.get(key)
        if ours is None or theirs is None:
            return None
        equal = sum(_common(*pair) for pair in zip(ours, theirs, strict=True))
        return equal / sum(map(len, ours))


class Session:
    """The running engines; each is started at its first turn. A context, at whose end all are closed."""

    def __init__(self, engines: Mapping[str, EngineSpec], logs: Path, timeout: float, results: Results) -> None:
        self._engines = engines
        self._logs = logs
        self._timeout = timeout
        self._results = results
        self._workers: dict[str, Worker] = {}

    def start(self, name: str, **options: Any) -> Worker:
        """A new process of an engine, which the caller closes."""
        worker = Worker(self._engines[name], options, self._logs / f"{name}.log", self._timeout)
        self._results.versions[name] = worker.version
        return worker

    @contextmanager
    def turn(self, name: str) -> Iterator[Worker]:
        """An engine's worker while all others are paused. It is closed if it fails."""
        if name in self._workers:
            self._workers[name].resume()
        else:
            self._workers[name] = self.start(name)
        try:
            yield self._workers[name]
        except EngineFailed:
            self._workers.pop(name).close()
            raise
        self._workers[name].pause()

    def close(self) -> None:
        """End all engines."""
        while self._workers:
            self._workers.popitem()[1].close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def compare_workload(session: Session, results: Results, name: str, engines: Sequence[str],
                     specs: Mapping[str, EngineSpec], repeat: int) -> None:
    """One untimed and ``repeat`` timed turns of each engine, which begin with another one each time."""
    workload, passes = load_workload(name), PLANS[name].passes
    for number in range(repeat + 1):
        for index in range(len(engines)):
            engine = engines[(index + number) % len(engines)]
            if (engine, name) in results.problems or (number == 0 and not specs[engine].warms_up):
                continue
            progress(f"{name}: {engine}, " + (f"run {number} of {repeat}" if number else "warm-up"))
            try:
                with session.turn(engine) as worker:
                    for each in passes:
                        work = shortened(workload, each.max_tokens)
                        answer = worker.generate(work, cold=each.cold, sampling=each.sampling)
                        if number:
                            key = (engine, name, each.name)
                            results.add(key, figures(work, answer, int(each.sampling.get("n", 1))))
                            if not answer.get("prompts_changed"):
                                results.tokens[key] = answer["tokens"]
            except EngineFailed as error:
                results.problems[engine, name] = str(error)


def compare_starts(session: Session, results: Results, engines: Sequence[str], repeat: int) -> None:
    """Start engines with a cache of each size, to the first token of a prompt, then for memory on to a batch.

    The first start of each size of an engine's cache is untimed: what it compiled is there for the others.
    """
    first = shortened(load_workload(FIRST_PROMPT), 1)
    for gib in KV_SIZES:
        for number in range(repeat + 1 if gib == KV_SIZES[0] else 2):
            last = number == (repeat if gib == KV_SIZES[0] else 1)
            for engine in engines:
                if (engine, START) in results.problems:
                    continue
                progress(f"{START}: {engine} with {gib} GiB, " + (f"run {number}" if number else "warm-up"))
                try:
                    with session.start(engine, kv_gib=gib, first_tokens=len(first.requests[0].prompt)) as worker:
                        worker.generate(first)
                        found: Figures = {"first_token": time.perf_counter() - worker.started,
                                          "peak_start": float(worker.peak_memory())}
                        if last:
                            worker.generate(load_workload(FILL))
                            found["peak_batch"] = float(worker.peak_memory())
                except EngineFailed as error:
                    results.problems[engine, START] = str(error)
                    continue
                if number:
                    results.add((engine, START, f"{gib} GiB"), found)


def shortened(workload: Workload, max_tokens: int | None) -> Workload:
    """The workload with other output lengths, if any are given."""
    if max_tokens is None:
        return workload
    return dataclasses.replace(workload, requests=tuple(Work(work.prompt, max_tokens) for work in workload.requests))


def figures(workload: Workload, answer: Mapping[str, Any], samples: int) -> Figures:
    """Speeds from a driver's times, as ``offline.Run`` defines them. computed, prompt_tokens: numbers of tokens."""
    seconds = answer["seconds"]
    generated = sum(work.max_tokens for work in workload.requests) * samples
    rates = [(work.max_tokens - 1) / (last - first)
             for work, first, last in zip(workload.requests, answer["first"], answer["last"], strict=True)
             if None not in (first, last) and work.max_tokens > 1]
    return {
        "seconds": seconds,
        "ttft": None if None in answer["first"] else statistics.fmean(answer["first"]),
        "decode_rate": statistics.median(rates) if rates else None,
        "output_rate": generated / seconds,
        "total_rate": (generated + workload.prompt_tokens) / seconds,
        "computed": answer.get("computed"),
        "prompt_tokens": workload.prompt_tokens,
    }


def progress(text: str) -> None:
    """Say on standard error what happens now."""
    print(text, file=sys.stderr, flush=True)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return next((index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
                min(len(first), len(second)))
