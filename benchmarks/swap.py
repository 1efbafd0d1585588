"""What does it save to move preempted requests' blocks to host memory, instead of computing them anew?

Equal requests with long outputs, more than the KV cache holds at their full length, so that some are preempted again
and again. They run, interleaved, in three engines: one whose cache holds everything, one with a small cache, and one
with the same small cache and swap space for all that it may preempt.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import describe_machine, format_table, machine_line, write_json

from jaxllm import LLM, SamplingParams
from jaxllm.errors import JaxLLMError
from jaxllm.kv_cache import kv_spec
from jaxllm.loading import open_model
from jaxllm.weights import ModelSource, resolve

BLOCK_SIZE = 32
SEED = 0


@dataclasses.dataclass(frozen=True)
class Load:
    """The requests, and the share of the blocks which they need at their full length that a small cache has."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    share: float

    @property
    def length(self) -> int:
        """Tokens of a request at its end."""
        return self.prompt_tokens + self.output_tokens

    @property
    def blocks_each(self) -> int:
        """Blocks that a request takes at its end."""
        return -(-self.length // BLOCK_SIZE)

    @property
    def few_blocks(self) -> int:
        """Blocks of a small cache: its share, but enough for one request."""
        return max(round(self.share * self.requests * self.blocks_each), self.blocks_each)

    @property
    def needed_tokens(self) -> int:
        """Tokens that go through the model if each does once; the last of an output never does."""
        return self.requests * (self.length - 1)

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Random token ids, so that no prefixes are shared."""
        return np.random.default_rng(SEED).integers(0, vocab_size, (self.requests, self.prompt_tokens)).tolist()


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, from an empty prefix cache to the last token: wall time, the process's CPU time, and by how much the
    engine's totals grew."""

    seconds: float
    cpu_seconds: float
    counts: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Result:
    """One engine's runs: medians of the times; the counts of a run, which do not vary."""

    name: str
    blocks: int
    swap_blocks: int
    seconds: float
    cpu_seconds: float
    steps: int
    preemptions: int
    tokens_computed: int
    tokens_again: int
    blocks_out: int
    blocks_in: int


def engines(source: ModelSource, dtype: str, load: Load) -> dict[str, LLM]:
    """The three engines, by name."""
    model = open_model(source, dtype).model
    block_bytes = kv_spec(model.config, model.dtype).block_bytes(BLOCK_SIZE)
    every = load.requests * load.blocks_each
    sizes = {"roomy": (every, 0), "recompute": (load.few_blocks, 0), "swap": (load.few_blocks, every)}
    return {name: LLM(source, dtype=dtype, max_model_len=load.length, max_num_seqs=load.requests, block_size=BLOCK_SIZE,
                      kv_cache_bytes=(blocks + 1) * block_bytes, swap_space=f"{swap * block_bytes}B")
            for name, (blocks, swap) in sizes.items()}


def run_once(llm: LLM, load: Load) -> Run:
    """Complete all requests."""
    llm.reset_prefix_cache()
    params = SamplingParams(temperature=0, max_tokens=load.output_tokens, ignore_eos=True, detokenize=False)
    before, started, cpu_started = dataclasses.asdict(llm.stats()), time.perf_counter(), time.process_time()
    llm.generate(load.prompts(llm.model_config.vocab_size), params, use_tqdm=False, raise_on_error=True)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    counts = {name: after - before[name] for name, after in dataclasses.asdict(llm.stats()).items()}
    return Run(seconds, cpu_seconds, counts)


def measure(llms: dict[str, LLM], load: Load, repeat: int) -> list[Result]:
    """Run each engine once untimed, which compiles, then all of them in turn."""
    for llm in llms.values():
        run_once(llm, load)
    runs: dict[str, list[Run]] = {name: [] for name in llms}
    for _ in range(repeat):
        for name, llm in llms.items():
            runs[name].append(run_once(llm, load))
    return [result_of(name, llm, load, runs[name]) for name, llm in llms.items()]


def result_of(name: str, llm: LLM, load: Load, runs: Sequence[Run]) -> Result:
    """What came of an engine's runs."""
    counts, stats = runs[0].counts, llm.stats()
    return Result(
        name=name,
        blocks=stats.kv_blocks_total,
        swap_blocks=stats.swap_blocks_total,
        seconds=statistics.median(run.seconds for run in runs),
        cpu_seconds=statistics.median(run.cpu_seconds for run in runs),
        steps=counts["num_steps"],
        preemptions=counts["num_preemptions"],
        tokens_computed=counts["num_computed_tokens"],
        tokens_again=counts["num_computed_tokens"] - load.needed_tokens,
        blocks_out=counts["num_swapped_out"],
        blocks_in=counts["num_swapped_in"],
    )


def report(results: Sequence[Result]) -> str:
    """The results as a table, with times relative to the first."""
    header = ("engine", "blocks", "host blocks", "s", "ratio", "CPU s", "ratio", "steps", "preemptions",
              "tokens computed", "of them again", "blocks out", "blocks in")
    first = results[0]
    return format_table(header, [
        (each.name, each.blocks, each.swap_blocks, f"{each.seconds:.2f}", f"{each.seconds / first.seconds:.2f}",
         f"{each.cpu_seconds:.2f}", f"{each.cpu_seconds / first.cpu_seconds:.2f}", each.steps,
         each.preemptions, f"{each.tokens_computed:,}", f"{each.tokens_again:,}", each.blocks_out, each.blocks_in)
        for each in results
    ])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="(default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="(default: %(default)s)")
    parser.add_argument("--requests", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=64, help="of each request (default: %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=192, help="of each request (default: %(default)s)")
    parser.add_argument("--share", type=float, default=0.4,
                        help="blocks of the small cache, relative to what the requests need (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each engine (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if min(chosen.requests, chosen.prompt_tokens, chosen.output_tokens, chosen.repeat) < 1 or not 0 < chosen.share <= 1:
        parser.error("counts are at least 1, and the share is above 0 and at most 1")
    load = Load(chosen.requests, chosen.prompt_tokens, chosen.output_tokens, chosen.share)
    try:
        results = measure(engines(resolve(chosen.model), chosen.dtype, load), load, chosen.repeat)
    except JaxLLMError as error:
        parser.error(str(error))
    machine = describe_machine()
    print(machine_line(machine))
    print(f"{load.requests} requests of {load.prompt_tokens} prompt and {load.output_tokens} output tokens, blocks of "
          f"{BLOCK_SIZE}\n\n" + report(results))
    details: dict[str, Any] = {"machine": machine, "model": chosen.model, "dtype": chosen.dtype,
                               "load": dataclasses.asdict(load)}
    write_json(chosen.json, {**details, "results": [dataclasses.asdict(each) for each in results]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
