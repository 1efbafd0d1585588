"""What a step costs the host: planning, building arrays, calling programs, keeping books.

The model is stubbed: programs take and return what the real ones do, of a model with SmolLM2-135M's tree of parameters,
but compute nothing. Everything else is the engine as it is: scheduler, runner, XLA's dispatch, outcomes. Steps are
decodes, one token for each running request; the wait for the device is not counted. Figures are the tenth percentile
over the steps, as other work on the machine adds to most of them. The total is that of every second step, in which only
the wait is timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import describe_machine, format_table, machine_line, write_json

from jaxllm.config import EngineConfig
from jaxllm.engine.build import CPU_LAYERS_PER_PROGRAM
from jaxllm.engine.core import Engine
from jaxllm.engine.sizes import cache_spec
from jaxllm.models.config import DecoderConfig
from jaxllm.models.model import build_model
from jaxllm.runner.functions import StepFunctions
from jaxllm.runner.programs import Programs
from jaxllm.runner.runner import Runner, StepResult
from jaxllm.sampling import SampleOutput
from jaxllm.sampling_params import SamplingParams

PARTS = ("schedule", "arrays", "programs", "outcomes", "other")
PROMPT = 16
WARM_STEPS = 20

# SmolLM2-135M's layers, heads and vocabulary; narrow, so that stubs have little to move.
MODEL = DecoderConfig(
    family="llama", vocab_size=49_152, hidden_size=64, num_layers=30, num_heads=8, num_kv_heads=2, head_dim=8,
    intermediate_size=64, max_position_embeddings=8192, tie_word_embeddings=True)


class StubbedFunctions(StepFunctions):
    """Programs that take all arguments and return what is expected, but compute nothing."""

    def begin(self, *arguments: Any) -> Any:
        """Zeros in the shapes of the real results."""
        shapes = jax.eval_shape(super().begin, *arguments)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype) + _touch(arguments, leaf.dtype), shapes)

    def layers(self, kind: int, params: Any, x: Any, step: Any, cache: Any) -> Any:
        """The arguments that come back."""
        return x + _touch((params, step), x.dtype), cache

    def end(self, outer: Any, x: Any, sample_rows: Any) -> Any:
        """Rows of ``x`` as they are."""
        return x[sample_rows] + _touch(outer, x.dtype), x

    def sample(self, variant: Any, head: Any, state: Any, newest: Any, hidden: Any, rows: Any, mask: Any) -> Any:
        """Token 0 for all."""
        tokens = jnp.zeros(rows.num_rows, jnp.int32) + _touch((head, hidden, rows), jnp.int32)
        return state, newest.at[rows.slot].set(tokens, mode="drop"), SampleOutput(tokens)


def _touch(tree: Any, dtype: Any) -> Any:
    """Zero, made of an element of each leaf, so that JAX drops none from the arguments; XLA sees through it."""
    return sum(0 * (leaf.ravel()[0] != 0).astype(jnp.int32) for leaf in jax.tree.leaves(tree)).astype(dtype)


class Stopwatch:
    """Sums up the time spent in functions, each without what other timed ones took inside it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.watches_parts = True
        self._inner = [0.0]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed; all but the wait only while parts are watched."""

        def wrapper(*arguments: Any, **options: Any) -> Any:
            if not self.watches_parts and name != "wait":
                return function(*arguments, **options)
            started = time.perf_counter()
            self._inner.append(0.0)
            try:
                return function(*arguments, **options)
            finally:
                taken = time.perf_counter() - started
                self.seconds[name] = self.seconds.get(name, 0.0) + taken - self._inner.pop()
                self._inner[-1] += taken

        return wrapper


def stubbed_engine(max_num_seqs: int, steps: int) -> Engine:
    """An engine without a model."""
    model = build_model(MODEL, jnp.dtype("float32"))
    length = PROMPT + steps + WARM_STEPS + 8
    config = EngineConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=512, max_model_len=length, block_size=32,
        num_blocks=1 + max_num_seqs * -(-length // 32), vocab_size=MODEL.vocab_size)
    programs = Programs(model, cache_spec(model, "auto"), config, CPU_LAYERS_PER_PROGRAM)
    programs._functions = StubbedFunctions(model, model.config.vocab_size, programs.spec, config, programs.chunks)
    return Engine(Runner(programs, model.init()), config)


def watch(engine: Engine, stopwatch: Stopwatch) -> None:
    """Time the parts of the engine's steps."""
    StepResult.fetch = stopwatch.timed("wait", StepResult.fetch)  # type: ignore[method-assign]
    runner, programs = engine._runner, engine._runner.programs  # type: ignore[attr-defined]
    engine.scheduler.schedule = stopwatch.timed("schedule", engine.scheduler.schedule)  # type: ignore[method-assign]
    programs._run = stopwatch.timed("programs", programs._run)
    outcomes = engine.replicas[0].outcomes
    outcomes.take = stopwatch.timed("outcomes", outcomes.take)  # type: ignore[method-assign]
    runner.dispatch = stopwatch.timed("arrays", runner.dispatch)  # type: ignore[method-assign]


def measure(running: int, waiting: int, steps: int) -> dict[str, Any]:
    """Seconds of each part of a step, and of adding a request."""
    engine = stubbed_engine(running, steps)
    generator = np.random.default_rng(0)
    prompts = generator.integers(0, MODEL.vocab_size, (running + waiting, PROMPT)).tolist()
    params = SamplingParams(temperature=0, max_tokens=steps + WARM_STEPS + 4, ignore_eos=True)
    started = time.perf_counter()
    for prompt in prompts:
        engine.add_request(prompt, params)
    add = (time.perf_counter() - started) / len(prompts)
    while engine.scheduler.num_running < running:
        engine.advance()
    for _ in range(WARM_STEPS):
        engine.advance()
    stopwatch = Stopwatch()
    fetch = StepResult.fetch
    watch(engine, stopwatch)
    lines: list[dict[str, float]] = []
    totals: list[float] = []
    try:
        for _ in range(steps // 2):
            stopwatch.watches_parts = False
            totals.append(timed_step(engine, stopwatch)["total"])
            stopwatch.watches_parts = True
            lines.append(timed_step(engine, stopwatch))
    finally:
        StepResult.fetch = fetch  # type: ignore[method-assign]
    found = {name: _tenth([line.get(name, 0.0) for line in lines]) for name in PARTS} | {"total": _tenth(totals)}
    return {"running": running, "waiting": waiting, "seconds": found, "add": add}


def timed_step(engine: Engine, stopwatch: Stopwatch) -> dict[str, float]:
    """The seconds of the step's parts that are watched, of all of it but the wait, and of the rest."""
    stopwatch.seconds = {}
    started = time.perf_counter()
    engine.advance()
    total = time.perf_counter() - started
    parts = stopwatch.seconds
    parts["total"] = total - parts.pop("wait")
    parts["other"] = parts["total"] - sum(parts.get(name, 0.0) for name in PARTS)
    return parts


def _tenth(seconds: list[float]) -> float:
    """The tenth percentile, never less than the least, as the default method's is of few values."""
    return statistics.quantiles(seconds, n=10, method="inclusive")[0]


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--running", type=int, nargs="+", default=[1, 16, 64, 256], help="requests that run at once")
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 100_000],
                        help="requests in the queue besides, with 64 running")
    parser.add_argument("--steps", type=int, default=400, help="steps to measure")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    machine = describe_machine()
    print(machine_line(machine) + "\n")
    cases = [(running, 0) for running in options.running]
    cases += [(64, waiting) for waiting in options.waiting if (64, waiting) not in cases]
    results = [measure(running, waiting, options.steps) for running, waiting in cases]
    rows = [[f"{found['running']} running, {found['waiting']:,} waiting",
             *(f"{1e3 * found['seconds'][name]:.3f}" for name in (*PARTS, "total")), f"{1e3 * found['add']:.3f}"]
            for found in results]
    print(format_table(["ms per step", *PARTS, "total", "add a request"], rows))
    write_json(options.json, {"machine": machine, "steps": options.steps, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
