"""How fast does jaxllm generate, how soon after the process starts, and in how much memory?

Runs workloads of fixed token ids and fixed output lengths (greedy, end of sequence ignored) through ``LLM.generate``.
Every workload has a process of its own, so that start-up and peak memory are its own; in it, one untimed run compiles
what the workload needs, then ``--repeat`` timed runs follow, whose medians are reported. The prefix cache is emptied
before each run; where all prompts begin alike, a second run follows each with the cache still warm.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import Workload, describe_machine, format_table, load_workload, machine_line, write_json

from jaxllm.errors import JaxLLMError

if TYPE_CHECKING:
    from jaxllm import LLM, RequestOutput, SamplingParams

ENGINE_OPTIONS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "kv_cache_bytes")
FIRST_PROMPT = 128
"""Most prompt tokens of the request by which the time to a process's first token is measured."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One pass over a workload.

    seconds: from the call of ``generate`` to its return. ttft: seconds from that call to a request's first token, mean
    over the requests. decode_rate: a request's tokens per second after its first, (n - 1) / (last - first), median over
    the requests; ``None`` where all have one token. output_rate, total_rate: tokens per second over all requests,
    generated ones, and those with the prompts'.
    """

    seconds: float
    ttft: float
    decode_rate: float | None
    output_rate: float
    total_rate: float
    cached_tokens: int


@dataclasses.dataclass(frozen=True)
class StartUp:
    """A process's start, in seconds since it was started: engine ready, and the first token of a prompt of up to
    ``FIRST_PROMPT`` tokens; how many programs were compiled until then, and how many came from the compilation cache.
    """

    ready: float
    first_token: float
    compiled: int
    from_cache: int


@dataclasses.dataclass(frozen=True)
class Passes:
    """A workload's timed runs in one state of the prefix cache, "cold" (empty at the start) or "warm"."""

    prefix_cache: str
    runs: list[Run]

    def median(self, field: str) -> float | None:
        """The median of a field of ``Run``, ``None`` if it is not known of every run."""
        values = [getattr(run, field) for run in self.runs]
        return None if None in values else statistics.median(values)


class CompileCounter:
    """Counts the programs that this process compiles or finds in jaxllm's cache or JAX's, from here on."""

    def __init__(self) -> None:
        from jax import monitoring

        self.requested = self.from_cache = self._found_by_jax = 0
        self._lock = threading.Lock()
        monitoring.register_event_duration_secs_listener(self._timed)
        monitoring.register_event_listener(self._event)

    @property
    def compiled(self) -> int:
        """Programs that were really compiled."""
        return self.requested - self._found_by_jax

    def _timed(self, event: str, duration_secs: float, **_: Any) -> None:
        with self._lock:
            self.requested += event == "/jax/core/compile/backend_compile_duration"

    def _event(self, event: str, **_: Any) -> None:
        from jaxllm.program_cache.executables import FOUND_EVENT

        with self._lock:
            self._found_by_jax += event == "/jax/compilation_cache/cache_hits"
            self.from_cache += event in (FOUND_EVENT, "/jax/compilation_cache/cache_hits")


def sampling(max_tokens: int, others: Mapping[str, Any] | None = None) -> SamplingParams:
    """Exactly so many tokens, greedily but for what ``others`` say."""
    from jaxllm import SamplingParams

    return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, "detokenize": False,
                             **(others or {})})


def run_once(llm: LLM, workload: Workload) -> Run:
    """Generate the workload once. Raises ``RuntimeError`` if any request comes back with other than its tokens."""
    prompts = [work.prompt for work in workload.requests]
    params = [sampling(work.max_tokens, workload.sampling) for work in workload.requests]
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False, raise_on_error=True)
    seconds = time.perf_counter() - started
    firsts, rates = [], []
    for work, output in zip(workload.requests, outputs, strict=True):
        first, last = token_times(output, work.max_tokens)
        firsts.append(first - started)
        if work.max_tokens > 1:
            rates.append((work.max_tokens - 1) / (last - first))
    return Run(
        seconds=seconds,
        ttft=statistics.fmean(firsts),
        decode_rate=statistics.median(rates) if rates else None,
        output_rate=workload.output_tokens / seconds,
        total_rate=(workload.output_tokens + workload.prompt_tokens) / seconds,
        cached_tokens=sum(output.num_cached_tokens for output in outputs),
    )


def token_times(output: RequestOutput, expected: int) -> tuple[float, float]:
    """When a request's first and last token came."""
    count, metrics = len(output.outputs[0].token_ids), output.metrics
    if count != expected:
        raise RuntimeError(f"{output.request_id} has {count} tokens, not {expected}; is max_model_len too small?")
    if metrics is None or metrics.first_token_time is None or metrics.finished_time is None:
        raise RuntimeError(f"{output.request_id} carries no times")
    return metrics.first_token_time, metrics.finished_time


def peak_memory() -> int:
    """Bytes of the largest resident set that this process has had."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(workload: Workload, model: str, options: Mapping[str, Any], repeat: int, started: float) -> dict[str, Any]:
    """All of a workload's figures, from a process that has not used JAX yet and was started at ``started``
    (``time.time``)."""
    import jax

    from jaxllm import LLM
    from jaxllm.platform import resolve_dtype

    counter = CompileCounter()
    llm = LLM(model, **options)
    ready = time.time() - started
    prompt = workload.requests[0].prompt[:FIRST_PROMPT]
    llm.generate(prompt, sampling(1), use_tqdm=False, raise_on_error=True)
    start_up = StartUp(ready, time.time() - started, counter.compiled, counter.from_cache)
    states = ["cold"]
    if workload.shared_prefix >= llm.engine.config.block_size:
        states.append("warm")
    passes = [Passes(state, []) for state in states]
    requested = 0
    for number in range(repeat + 1):
        llm.reset_prefix_cache()
        for each in passes:
            run = run_once(llm, workload)
            if number > 0:
                each.runs.append(run)
        if number == 0:
            requested = counter.requested
    return {
        "workload": workload.name,
        "note": workload.note,
        "requests": len(workload.requests),
        "prompt_tokens": workload.prompt_tokens,
        "output_tokens": workload.output_tokens,
        "dtype": resolve_dtype(options["dtype"], jax.default_backend()).name,
        "engine": dataclasses.asdict(llm.engine.config),
        "start_up": dataclasses.asdict(start_up),
        "compiled_while_timed": counter.requested - requested,
        "peak_bytes": peak_memory(),
        "passes": [
            {
                "prefix_cache": each.prefix_cache,
                "median": {field.name: each.median(field.name) for field in dataclasses.fields(Run)},
                "runs": [dataclasses.asdict(run) for run in each.runs],
            }
            for each in passes
        ],
    }


def measure_in_child(workload: str, model: str, options: Mapping[str, Any], repeat: int) -> dict[str, Any]:
    """``measure`` in a fresh process. Raises ``CalledProcessError`` if that fails; its messages went to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        task = {"workload": workload, "model": model, "options": options, "repeat": repeat, "started": time.time()}
        subprocess.run([sys.executable, __file__, "--worker", json.dumps(task), str(result)], check=True)
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def work(task: str, result: str) -> None:
    """What the child does."""
    given = json.loads(task)
    workload = load_workload(given.pop("workload"))
    Path(result).write_text(json.dumps(measure(workload, **given)))


def report(results: Sequence[Mapping[str, Any]]) -> str:
    """The figures as two tables: speed, then start-up and memory."""
    speed, start = [], []
    for each in results:
        for one in each["passes"]:
            median, seconds = one["median"], [run["seconds"] for run in one["runs"]]
            name = each["workload"] + (", warm prefix cache" if one["prefix_cache"] == "warm" else "")
            decode = "-" if median["decode_rate"] is None else f"{median['decode_rate']:.1f}"
            spread = (max(seconds) - min(seconds)) / median["seconds"]
            speed.append((name, each["requests"], f"{median['ttft']:.3f}", decode, f"{median['output_rate']:.1f}",
                          f"{median['total_rate']:.1f}", f"{median['seconds']:.3f}", f"{100 * spread:.0f} %"))
        start_up = each["start_up"]
        start.append((each["workload"], f"{start_up['ready']:.2f}", f"{start_up['first_token']:.2f}",
                      start_up["compiled"], start_up["from_cache"], f"{each['peak_bytes'] / 2**20:.0f}"))
    return "\n\n".join([
        format_table(("workload", "requests", "TTFT s", "decode tok/s", "output tok/s", "total tok/s", "wall s",
                      "spread"), speed),
        format_table(("process", "engine ready s", "first token s", "compiled", "from cache", "peak MiB"), start),
    ])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a workload failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="as for LLM (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="as for LLM (default: %(default)s)")
    parser.add_argument("--workloads", default="W1,W2,W3,W4", help="names or .json files (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each (default: %(default)s)")
    for name in ENGINE_OPTIONS:
        parser.add_argument("--" + name.replace("_", "-"), type=int, help="as for LLM")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.worker:
        work(*chosen.worker)
        return 0
    if chosen.repeat < 1:
        parser.error(f"--repeat={chosen.repeat}: at least 1")
    names = chosen.workloads.split(",")
    try:
        for name in names:
            load_workload(name)
    except JaxLLMError as error:
        parser.error(str(error))
    options = {name: getattr(chosen, name) for name in ("dtype", *ENGINE_OPTIONS)}
    machine = describe_machine()
    results, failed = [], []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr)
        try:
            results.append(measure_in_child(name, chosen.model, options, chosen.repeat))
        except subprocess.CalledProcessError as error:
            failed.append(f"{name} failed: its process ended with status {error.returncode}")
    if results:
        print(f"{machine_line(machine)}\n{chosen.model} in {results[0]['dtype']}; medians of {chosen.repeat} runs\n\n"
              + report(results))
    for each in results:
        if each["compiled_while_timed"]:
            print(f"{each['workload']}: {each['compiled_while_timed']} programs were compiled during timed runs",
                  file=sys.stderr)
    print("".join(f"{line}\n" for line in failed), end="", file=sys.stderr)
    write_json(chosen.json, {"machine": machine, "model": chosen.model, "options": options, "repeat": chosen.repeat,
                             "results": results, "failed": failed})
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
