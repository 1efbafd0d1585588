"""How does speed grow with the number of concurrent requests, and a step's time with the length of the context?

The first table submits so many requests of a workload together, and reports the whole run: host time is the processor
time of the thread that plans and dispatches the steps and records their results, the median over all steps; the model
itself runs on other threads. A step's time is the median over the steps in which every request got a token and nothing
else was computed, if there were any. Steps overlap, so that it is the time between results.

The second table computes the last chunk of prompt tokens of contexts of growing length, up to its first token, and then
decodes a few more. What comes before the chunk is in the prefix cache.

Speculation is off, so that each step has one token of each request.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from harness import Work, describe_machine, format_table, load_workload, machine_line, write_json
from offline import sampling

from jaxllm.errors import JaxLLMError

if TYPE_CHECKING:
    from jaxllm import LLM

SHORTEST = 128
DECODED = 16
"""Tokens generated after each context; the context's length is that of the last of them."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One step: seconds, those of the host's processor time, and how many tokens were computed and generated in it."""

    seconds: float
    host: float
    computed: int
    generated: int


@dataclasses.dataclass(frozen=True)
class Load:
    """A run of so many requests. host_ms: the median over all steps. step_ms: that over the ``full_steps``, in which
    all of them, and only they, decoded; ``None`` if there were none."""

    requests: int
    output_rate: float
    total_rate: float
    steps: int
    host_ms: float | None
    full_steps: int
    step_ms: float | None


@dataclasses.dataclass(frozen=True)
class Context:
    """Steps at a length of context. chunk_ms: from a request to its token, if all but its last ``chunk`` prompt tokens
    are cached, ``None`` if the length has no more."""

    tokens: int
    decode_ms: float
    chunk: int
    chunk_ms: float | None


def run_steps(llm: LLM, requests: Sequence[Work]) -> list[Step]:
    """Submit the requests together and run the engine until all are done."""
    for work in requests:
        llm.engine.add_request(work.prompt, sampling(work.max_tokens))
    steps = []
    before = llm.stats()
    while llm.engine.has_unfinished():
        started, processor = time.perf_counter(), time.thread_time()
        llm.engine.step()
        seconds, host = time.perf_counter() - started, time.thread_time() - processor
        after = llm.stats()
        steps.append(Step(seconds, host, after.num_computed_tokens - before.num_computed_tokens,
                          after.num_generated_tokens - before.num_generated_tokens))
        before = after
    return steps


def measure_load(llm: LLM, requests: Sequence[Work], repeat: int) -> Load:
    """The run with the median time of ``repeat``, after an untimed one, each without cached prefixes."""
    runs = []
    for number in range(repeat + 1):
        llm.reset_prefix_cache()
        steps = run_steps(llm, requests)
        if number:
            runs.append(steps)
    runs.sort(key=lambda steps: sum(step.seconds for step in steps))
    steps = runs[len(runs) // 2]
    seconds = sum(step.seconds for step in steps)
    outputs = sum(work.max_tokens for work in requests)
    full = [step for step in steps if step.computed == step.generated == len(requests)]
    return Load(len(requests), outputs / seconds, (outputs + sum(len(work.prompt) for work in requests)) / seconds,
                len(steps), _median_ms([step.host for step in steps]), len(full),
                _median_ms([step.seconds for step in full]))


def measure_contexts(llm: LLM, lengths: Sequence[int], repeat: int) -> list[Context]:
    """Each length's median times, over all decoding steps of ``repeat`` passes after an untimed one."""
    vocab = llm.engine.config.vocab_size
    chunk, block = llm.engine.config.max_num_batched_tokens, llm.engine.config.block_size
    tokens = np.random.default_rng(0).integers(0, vocab, max(lengths)).tolist()
    decodes: dict[int, list[float]] = {length: [] for length in lengths}
    chunks: dict[int, list[float]] = {length: [] for length in lengths}
    for number in range(repeat + 1):
        llm.reset_prefix_cache()
        for length in lengths:
            prompt = tokens[: (length - DECODED) // block * block]
            before = prompt[:-chunk]
            if before:
                run_steps(llm, [Work(before, 1)])
            last = run_steps(llm, [Work(prompt, 1)])
            steps = run_steps(llm, [Work(tokens[: length - DECODED], DECODED)])
            if number:
                decodes[length] += [step.seconds for step in steps if step.computed == step.generated == 1]
                if sum(step.computed for step in last) == chunk:
                    chunks[length].append(sum(step.seconds for step in last))
    return [Context(length, _median_ms(decodes[length]) or 0.0, chunk, _median_ms(chunks[length]))
            for length in lengths]


def context_lengths(longest: int) -> list[int]:
    """Powers of two from ``SHORTEST``, and the longest context."""
    lengths = [SHORTEST]
    while 2 * lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    return [*(length for length in lengths if length < longest), longest]


def numbers(text: str) -> list[int]:
    """Integers separated by commas."""
    try:
        return [int(part) for part in text.split(",") if part]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: integers separated by commas") from None


def report(loads: Sequence[Load], contexts: Sequence[Context]) -> str:
    """Both tables."""
    parts = []
    if loads:
        parts.append(format_table(
            ("requests", "output tok/s", "total tok/s", "steps", "host ms per step", "all decoding", "ms of those"),
            [(each.requests, f"{each.output_rate:.1f}", f"{each.total_rate:.1f}", each.steps, _text(each.host_ms),
              each.full_steps, _text(each.step_ms)) for each in loads]))
    if contexts:
        parts.append(format_table(
            ("context", "ms per decoding step", f"ms per {contexts[0].chunk} prompt tokens"),
            [(each.tokens, _text(each.decode_ms), _text(each.chunk_ms)) for each in contexts]))
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="as for LLM (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="as for LLM (default: %(default)s)")
    parser.add_argument("--workload", default="W2b", help="whose first requests run together (default: %(default)s)")
    parser.add_argument("--requests", type=numbers, default="1,4,16,64,256",
                        help="how many; empty for none (default: %(default)s)")
    parser.add_argument("--contexts", type=numbers,
                        help="lengths; empty for none (default: powers of two up to the model's context)")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--kv-cache-bytes", default="1G", help="as for LLM (default: %(default)s)")
    parser.add_argument("--kv-cache-dtype", default="auto", help="as for LLM (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if chosen.repeat < 1:
        parser.error(f"--repeat={chosen.repeat}: at least 1")
    try:
        requests = load_workload(chosen.workload).requests
    except JaxLLMError as error:
        parser.error(str(error))
    counts: list[int] = chosen.requests
    if not all(1 <= count <= len(requests) for count in counts):
        parser.error(f"--requests={counts}: numbers from 1 to the {len(requests)} of {chosen.workload}")

    from jaxllm import LLM

    machine = describe_machine()
    options: dict[str, Any] = {"dtype": chosen.dtype, "kv_cache_bytes": chosen.kv_cache_bytes,
                               "kv_cache_dtype": chosen.kv_cache_dtype,
                               "max_num_seqs": max([*counts, 1]), "speculative_config": None}
    llm = LLM(chosen.model, **options)
    longest = llm.engine.config.max_model_len
    lengths = context_lengths(longest) if chosen.contexts is None else sorted(chosen.contexts)
    if not all(2 * DECODED <= length <= longest for length in lengths):
        parser.error(f"--contexts={lengths}: numbers from {2 * DECODED} to {longest}")
    loads = []
    for count in counts:
        print(f"{count} requests ...", file=sys.stderr)
        loads.append(measure_load(llm, requests[:count], chosen.repeat))
    if lengths:
        print("contexts ...", file=sys.stderr)
    contexts = measure_contexts(llm, lengths, chosen.repeat) if lengths else []
    print(f"{machine_line(machine)}\n{chosen.model}; medians of {chosen.repeat} runs\n\n" + report(loads, contexts))
    write_json(chosen.json, {
        "machine": machine, "model": chosen.model, "options": options, "repeat": chosen.repeat,
        "engine": dataclasses.asdict(llm.engine.config), "loads": [dataclasses.asdict(each) for each in loads],
        "contexts": [dataclasses.asdict(each) for each in contexts]})
    return 0


def _median_ms(seconds: Sequence[float]) -> float | None:
    return 1000 * statistics.median(seconds) if seconds else None


def _text(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
