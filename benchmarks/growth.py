"""What do more devices cost: compiling an engine's programs, and the host's time for a step?

An engine of a small model over 1, 2, 4 and 8 virtual devices, along each axis of a mesh in turn. **compile** is what
it takes to trace and compile, one after the other, every program that greedy requests need, in processor time of all
threads: stages and replicas have programs of their own, devices that share layers have theirs together. Then all
replicas decode, eight sequences in each stage. A step's times are the processor time of the thread that runs the
engine, so that neither the model's work in other threads nor waiting for it counts: planning (scheduler and blocks),
dispatching (arrays, and XLA's dispatch of the programs to every device), recording what came of it, and the whole;
medians over the steps, each of one replica.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import describe_machine, format_table, machine_line, write_json

from jaxllm.engine.build import build_engine
from jaxllm.engine.core import Engine
from jaxllm.engine.sizes import EngineSizes
from jaxllm.models.config import DecoderConfig
from jaxllm.models.model import build_model
from jaxllm.parallel.mesh import chosen_mesh
from jaxllm.parallel.pipeline import replica_partitions
from jaxllm.runner.keys import Key
from jaxllm.runner.programs import Programs
from jaxllm.sampling import Variant
from jaxllm.sampling_params import SamplingParams

AXES = {"tensor": "tensor_parallel_size", "pipe": "pipeline_parallel_size", "data": "data_parallel_size"}
PARTS = ("plan", "dispatch", "record")
ROWS = 8
WARM_STEPS = 8
# As many layers and heads as the most devices need, and little to compute.
MODEL = DecoderConfig(
    family="llama", vocab_size=512, hidden_size=64, num_layers=8, num_heads=8, num_kv_heads=8, head_dim=8,
    intermediate_size=128, max_position_embeddings=4096)


class Timer:
    """The processor seconds of this thread in each call of functions, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, each call's time kept."""
        def timed(*arguments: Any) -> Any:
            begun = time.thread_time()
            result = function(*arguments)
            self.seconds.setdefault(name, []).append(time.thread_time() - begun)
            return result

        return timed

    def milliseconds(self, name: str) -> float:
        """The median."""
        return 1e3 * statistics.median(self.seconds[name])


def stages_programs(engine: Engine) -> list[Programs]:
    """The programs of every stage of every replica."""
    runners: list[Any] = [replica.runner for replica in engine.replicas]
    return [stage.programs for runner in runners for stage in getattr(runner, "stages", [runner])]


def keys_of_greedy_requests(programs: Programs) -> list[Key]:
    """What prompts and greedy decoding need, in every size."""
    tokens = [key for bucket in programs.token_buckets for key in programs.forward_keys(bucket)]
    rows = [Key("sample", bucket, Variant.GREEDY) for bucket in programs.row_buckets] if programs.last else []
    return [*tokens, *rows, Key("update_table")]


def measure(axis: str, size: int, steps: int) -> dict[str, Any]:
    """The figures of an engine over ``size`` devices along one axis."""
    pipe, data = size if axis == "pipe" else 1, size if axis == "data" else 1
    model = build_model(MODEL, jnp.dtype("float32"))
    params, prompt = model.init(), 16
    output = data * (steps + WARM_STEPS) * pipe + 8
    sequences = ROWS * pipe
    sizes = EngineSizes(
        max_model_len=prompt + output, max_num_seqs=sequences, max_num_batched_tokens=2 * sequences, block_size=32,
        kv_cache_bytes=(1 + sequences * -(-(prompt + output) // 32)) * 32 * 2 * 8 * 8 * 8 * 4 // size * data,
        speculative_config=None)
    partitions = replica_partitions(model, chosen_mesh(**{AXES[axis]: size}))
    engine = build_engine(model, lambda: params, sizes, partition=partitions)
    found = stages_programs(engine)
    begun = time.process_time(), time.perf_counter()
    for programs in found:
        for key in keys_of_greedy_requests(programs):
            programs.compile(key)
    compiled, waited = time.process_time() - begun[0], time.perf_counter() - begun[1]
    count = sum(programs.num_executables for programs in found)
    generator = np.random.default_rng(0)
    params_of_all = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
    for _ in range(sequences * data):
        engine.add_request(generator.integers(0, MODEL.vocab_size, prompt).tolist(), params_of_all)
    while any(replica.scheduler.num_waiting for replica in engine.replicas):
        engine.advance()
    for _ in range(WARM_STEPS * data * pipe):
        engine.advance()
    timer = Timer()
    for replica in engine.replicas:
        scheduler, runner, outcomes = replica.scheduler, replica.runner, replica.outcomes
        scheduler.schedule = timer.timed("plan", scheduler.schedule)  # type: ignore[method-assign]
        runner.dispatch = timer.timed("dispatch", runner.dispatch)  # type: ignore[method-assign]
        outcomes.take = timer.timed("record", outcomes.take)  # type: ignore[method-assign]
    advance = timer.timed("whole", engine.advance)
    for _ in range(steps * data):
        advance()
    if sum(programs.num_executables for programs in found) != count:
        raise RuntimeError("a program was compiled while the clock ran")
    if len(timer.seconds["record"]) != steps * data:
        raise RuntimeError("some of the steps that were timed had nothing to do")
    return {"axis": axis, "devices": size, "programs": count, "compile_cpu_s": compiled, "compile_s": waited,
            "steps": steps * data, **{f"{name}_ms": timer.milliseconds(name) for name in (*PARTS, "whole")}}


def report(results: Sequence[dict[str, Any]]) -> str:
    """The results as a table."""
    header = ("axis", "devices", "programs", "compile, CPU s", *(f"{name}, ms" for name in PARTS), "a step, ms")
    return format_table(header, [
        (each["axis"], each["devices"], each["programs"], f"{each['compile_cpu_s']:.1f}",
         *(f"{each[f'{name}_ms']:.2f}" for name in (*PARTS, "whole"))) for each in results])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark, in a process that has not used JAX yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--devices", type=int, nargs="+", choices=(1, 2, 4, 8), default=[1, 2, 4, 8])
    parser.add_argument("--steps", type=int, default=100, help="of each replica (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if chosen.steps < 1:
        parser.error("--steps has to be at least 1")
    os.environ["JAXLLM_COMPILATION_CACHE"] = "off"
    jax.config.update("jax_enable_compilation_cache", False)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(chosen.devices))
    machine = describe_machine()
    print(machine_line(machine))
    measure(chosen.axes[0], 1, 1)  # what only a process's first compilation takes
    results = [measure(axis, size, chosen.steps) for axis in chosen.axes for size in chosen.devices]
    print(f"virtual devices on the cores of one machine; {chosen.steps} steps of each replica\n\n" + report(results))
    write_json(chosen.json, {"machine": machine, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
