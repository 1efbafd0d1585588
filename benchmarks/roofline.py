"""What do the workloads take at least on this machine, and how near to that is what ``compare.py`` measured?

For each workload: the bytes that have to be read and the operations that have to be computed
(``jaxllm.bench.ModelCosts`` says what counts), first for all prompts, then for all later tokens, in the fewest steps. A
prefix that requests or samples share is computed once, and read once per step. At the speeds that simple programs reach
on this machine follow the least time, and the highest rate of output tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compare_runs import PLANS
from harness import Workload, describe_machine, format_table, load_workload, machine_line, write_json

from jaxllm.bench import Chunk, Cost, MachineSpeed, ModelCosts, measure_machine
from jaxllm.engine.sizes import CPU_DEFAULTS, cache_spec
from jaxllm.errors import JaxLLMError
from jaxllm.loading import open_model, open_source

BUDGET = CPU_DEFAULTS["max_num_batched_tokens"]
SHORTEST_SHARED = 32
"""Prefixes are shared by blocks: shorter ones by chance are not counted."""


@dataclasses.dataclass(frozen=True)
class Bound:
    """A workload's costs and what follows from them."""

    workload: str
    prompts: Cost
    decoding: Cost
    prompts_seconds: float
    decoding_seconds: float
    output_rate: float


def prompt_cost(costs: ModelCosts, workload: Workload) -> Cost:
    """All prompts, each token once, in steps of at most ``BUDGET`` tokens."""
    shared = shared_prefix(workload)
    first, *others = (len(work.prompt) for work in workload.requests)
    rest = [Chunk(shared, length - shared, shared=shared) for length in others]
    return costs.prefill([Chunk(0, first), *rest], BUDGET)


def decoding_cost(costs: ModelCosts, workload: Workload) -> Cost:
    """All tokens after the first ones, in as many steps as the longest output needs."""
    shared, samples = shared_prefix(workload), int(workload.sampling.get("n", 1))
    total = Cost()
    for number in range(max(work.max_tokens for work in workload.requests) - 1):
        chunks: list[Chunk] = []
        for work in workload.requests:
            if work.max_tokens - 1 > number:
                length = len(work.prompt)
                chunks.append(Chunk(length + number, 1, shared=shared if chunks else 0))
                chunks += [Chunk(length + number, 1, shared=length)] * (samples - 1)
        total += costs.step(chunks)
    return total


def shared_prefix(workload: Workload) -> int:
    """Tokens with which all prompts begin."""
    return workload.shared_prefix if workload.shared_prefix >= SHORTEST_SHARED else 0


def bound_of(costs: ModelCosts, machine: MachineSpeed, workload: Workload) -> Bound:
    """Everything about one workload."""
    prompts, decoding = prompt_cost(costs, workload), decoding_cost(costs, workload)
    first, later = (cost.seconds(machine.bytes_per_second, machine.flops_per_second) for cost in (prompts, decoding))
    return Bound(workload.name, prompts, decoding, first, later, workload.output_tokens / (first + later))


def measured_rates(path: Path | None) -> dict[str, float]:
    """jaxllm's output tokens/s by workload, from a report of ``compare.py``."""
    if path is None:
        return {}
    runs: Sequence[Mapping[str, Any]] = json.loads(path.read_text())["runs"]
    wanted = ("cold", "sampled")
    return {run["workload"]: run["median"]["output_rate"] for run in runs
            if run["engine"] in ("jaxllm", "jaxllm-128") and run["pass"] in wanted and "output_rate" in run["median"]}


def report(bounds: Sequence[Bound], rates: Mapping[str, float]) -> str:
    """The table."""
    rows = []
    for each in bounds:
        rate = rates.get(each.workload)
        rows.append((
            each.workload, f"{each.prompts.bytes / 1e9:.2f}", f"{each.prompts.flops / 1e9:,.0f}",
            f"{each.prompts_seconds:.3f}", f"{each.decoding.bytes / 1e9:.2f}", f"{each.decoding.flops / 1e9:,.0f}",
            f"{each.decoding_seconds:.3f}", f"{each.output_rate:,.0f}", "-" if rate is None else f"{rate:,.1f}",
            "-" if rate is None else f"{100 * rate / each.output_rate:.0f} %"))
    return format_table(("workload", "prompts: GB", "GFLOP", "least s", "decoding: GB", "GFLOP", "least s",
                         "most output tok/s", "measured", "of it"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="as for LLM (default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="as for LLM (default: %(default)s)")
    parser.add_argument("--workloads", default=",".join(PLANS), help="names or .json files (default: %(default)s)")
    parser.add_argument("--measured", type=Path, help="a JSON report of compare.py, to be held against these")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    try:
        workloads = [load_workload(name) for name in chosen.workloads.split(",")]
        model = open_model(open_source(chosen.model), chosen.dtype).model
    except JaxLLMError as error:
        parser.error(str(error))
    machine, description = measure_machine(model.dtype), describe_machine()
    costs = ModelCosts.of(model, cache_spec(model, "auto"))
    bounds = [bound_of(costs, machine, workload) for workload in workloads]
    rates = measured_rates(chosen.measured)
    speeds = f"reads {machine.bytes_per_second / 1e9:.1f} GB/s, computes {machine.flops_per_second / 1e9:,.0f} GFLOP/s"
    print(f"{machine_line(description)}\n{chosen.model} in {model.dtype.name}; the machine {speeds}\n\n"
          + report(bounds, rates))
    write_json(chosen.json, {
        "machine": description, "speed": dataclasses.asdict(machine), "model": chosen.model, "dtype": model.dtype.name,
        "costs": dataclasses.asdict(costs), "bounds": [dataclasses.asdict(bound) for bound in bounds],
        "measured": rates})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
