"""What does the host do per step of a replica, as an engine has more of them?

An engine of 1, 8 and 64 replicas on pretend devices, which answer at once: all time is the host's own. Every replica
decodes about ``--running`` sequences, each added by way of the router, half of them with a common beginning of 256
tokens. Times are per step of one replica: planning it (scheduler and blocks), recording what came of it, and all else:
threads that wait for the steps of several replicas, and the loop. Beside it, per request: adding it, and of that
routing it.
"""

from __future__ import annotations

import argparse
import collections
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import describe_machine, format_table, machine_line, write_json

from jaxllm.config import EngineConfig
from jaxllm.engine.core import Engine
from jaxllm.engine.plan import StepPlan
from jaxllm.runner.runner import StepResult
from jaxllm.sampling import SampleOutput
from jaxllm.sampling_params import SamplingParams

LIMIT_MS = 1.0
"""The most that a step of a replica may cost the host."""
GROUPS = 16
SHARED = 256


class PretendRunner:
    """Has no device: whatever is asked, the token is 0."""

    intact = True

    def dispatch(self, plan: StepPlan) -> PretendStep:
        """What a runner on a device does for the host's books: the plan's arrays, which are needed before the next."""
        plan.token_ids()
        return PretendStep(len(plan.sampled))


class PretendStep:
    """A step that is done."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def fetch(self) -> StepResult:
        """Zeros."""
        ids, values = np.zeros(self._rows, np.int32), np.zeros(self._rows, np.float32)
        return StepResult(SampleOutput(ids, values, ids, np.zeros((self._rows, 0), np.int32), values[:, None]), [])


class Timer:
    """Seconds spent in functions, by name."""

    def __init__(self) -> None:
        self.seconds: collections.Counter[str] = collections.Counter()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time added up."""
        def timed(*arguments: Any) -> Any:
            begun = time.perf_counter()
            result = function(*arguments)
            self.seconds[name] += time.perf_counter() - begun
            return result

        return timed


def measure(num_replicas: int, running: int, steps: int) -> dict[str, Any]:
    """The figures of an engine: milliseconds per step of a replica, over ``steps`` of each; and per request."""
    length, output = SHARED + 256, steps + 32
    config = EngineConfig(
        max_num_seqs=2 * running, max_num_batched_tokens=8192, max_model_len=length + output + 1, block_size=64,
        num_blocks=2 * running * (-(-(length + output) // 64) + 1) + 1, vocab_size=128_000)
    engine = Engine([PretendRunner() for _ in range(num_replicas)], config)  # type: ignore[list-item]
    timer = Timer()
    engine._router.route = timer.timed("route", engine._router.route)  # type: ignore[method-assign]
    generator = np.random.default_rng(0)
    beginnings = generator.integers(0, config.vocab_size, (GROUPS, SHARED))
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
    prompts = []
    for number in range(num_replicas * running):
        first = beginnings[number % GROUPS] if number % 2 else generator.integers(0, config.vocab_size, SHARED)
        prompts.append(np.append(first, generator.integers(0, config.vocab_size, length - SHARED)))
    begun = time.perf_counter()
    for prompt in prompts:
        engine.add_request(prompt, params)
    added = time.perf_counter() - begun
    counts = [stats.num_running + stats.num_waiting for stats in engine.replica_stats()]
    while any(replica.scheduler.num_waiting for replica in engine.replicas if replica.scheduler.has_unfinished):
        engine.advance()
    for _ in range(2 * num_replicas):
        engine.advance()
    for replica in engine.replicas:
        scheduler, outcomes = replica.scheduler, replica.outcomes
        scheduler.schedule = timer.timed("plan", scheduler.schedule)  # type: ignore[method-assign]
        outcomes.take = timer.timed("record", outcomes.take)  # type: ignore[method-assign]
    turns = num_replicas * steps // 2
    begun = time.perf_counter()
    for _ in range(turns):
        engine.advance()
    whole = time.perf_counter() - begun
    per_step = {name: 1e3 * timer.seconds[name] / turns for name in ("plan", "record")}
    return {
        "replicas": num_replicas, "running": running, "steps": turns, "most": max(counts), "least": min(counts),
        **per_step, "other": 1e3 * whole / turns - sum(per_step.values()), "whole": 1e3 * whole / turns,
        "add": 1e3 * added / len(prompts), "route": 1e3 * timer.seconds["route"] / len(prompts),
    }


def report(results: Sequence[dict[str, Any]]) -> str:
    """The results as a table."""
    header = ("replicas", "requests each", "plan, ms", "record, ms", "other, ms", "a step, ms", "add, ms", "route, ms")
    return format_table(header, [
        (each["replicas"], f"{each['least']}-{each['most']}",
         *(f"{each[name]:.3f}" for name in ("plan", "record", "other", "whole", "add", "route"))) for each in results])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a step of a replica costs the host more than ``LIMIT_MS``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--running", type=int, default=64, help="sequences of a replica (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="of each replica (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if min(*chosen.replicas, chosen.running, chosen.steps // 2) < 1:
        parser.error("--replicas and --running have to be at least 1, --steps at least 2")
    results = [measure(number, chosen.running, chosen.steps) for number in chosen.replicas]
    machine = describe_machine()
    print(machine_line(machine))
    print(f"{chosen.running} decoding sequences a replica, {chosen.steps} steps of each\n\n" + report(results))
    missed = [str(each["replicas"]) for each in results if each["whole"] > LIMIT_MS]
    print(f"\nat most {LIMIT_MS} ms of the host's time per step of a replica: "
          + (f"MISSED with {', '.join(missed)} replicas" if missed else "met"))
    write_json(chosen.json, {"machine": machine, "limit_ms": LIMIT_MS, "results": results})
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
