"""How much of the KV cache's allocated memory holds nothing?

Runs a workload through the scheduler and the block manager for several block sizes, and after every step compares the
slots that running requests hold with those that have keys and values in them. Beside it: what the same schedule would
waste if each running request had one contiguous reservation, either of the longest context (``max_model_len``) or of
its own prompt and output, which takes knowing the output's length beforehand.

The model is left out, as output lengths are fixed: a run takes a second and needs no JAX. ``--real`` runs the whole
engine instead, which must come to the same figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import Workload, describe_machine, format_table, load_workload, machine_line, percent, write_json

from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.limits import SchedulerConfig
from jaxllm.engine.request import Request, SequenceStatus
from jaxllm.engine.scheduler import Scheduler
from jaxllm.engine.stopping import check_stop
from jaxllm.errors import JaxLLMError, ParameterError
from jaxllm.sampling_params import SamplingParams

LIMITS = {16: 0.06, 8: 0.04}
"""For these block sizes, the share of allocated slots that may be unused on average over W2."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What bounds the schedule."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The cache between two steps, in slots.

    allocated, filled: of the blocks that running requests hold; shared blocks count once. tokens: computed so far over
    all running requests. longest, exact: contiguous reservations for them, of ``max_model_len`` each and of prompt and
    output each.
    """

    allocated: int
    filled: int
    tokens: int
    longest: int
    exact: int


@dataclasses.dataclass(frozen=True)
class Waste:
    """Averages over a run's steps.

    paged, longest, exact: mean over the steps of the unused share of the slots allocated or reserved. paged_weighted:
    unused slots over allocated slots, both summed over the steps, so that full steps count more. peak_*: the most
    slots at any step.
    """

    block_size: int
    steps: int
    paged: float
    paged_weighted: float
    longest: float
    exact: float
    peak_allocated: int
    peak_longest: int
    peak_exact: int

    @classmethod
    def of(cls, block_size: int, snapshots: Sequence[Snapshot]) -> Waste:
        """Average over the steps after which anything ran; ``ParameterError`` if nothing ever did."""
        seen = [each for each in snapshots if each.allocated]
        if not seen:
            raise ParameterError("workload", f"{len(snapshots)} steps", "one whose requests run for more than one step")
        return cls(
            block_size=block_size,
            steps=len(snapshots),
            paged=statistics.fmean(1 - each.filled / each.allocated for each in seen),
            paged_weighted=1 - sum(each.filled for each in seen) / sum(each.allocated for each in seen),
            longest=statistics.fmean(1 - each.tokens / each.longest for each in seen),
            exact=statistics.fmean(1 - each.tokens / each.exact for each in seen),
            peak_allocated=max(each.allocated for each in seen),
            peak_longest=max(each.longest for each in seen),
            peak_exact=max(each.exact for each in seen),
        )


def snapshot(scheduler: Scheduler) -> Snapshot:
    """The cache as it is now."""
    stats = scheduler.blocks.stats()
    running = [sequence for request in scheduler.requests for sequence in request.sequences
               if sequence.status is SequenceStatus.RUNNING]
    return Snapshot(
        allocated=stats.slots_allocated,
        filled=stats.slots_filled,
        tokens=sum(sequence.num_computed for sequence in running),
        longest=scheduler.config.max_model_len * len(running),
        exact=sum(sequence.num_prompt + sequence.request.max_tokens for sequence in running),
    )


def sampling(max_tokens: int) -> SamplingParams:
    """Exactly so many tokens, greedily."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)


def scheduled_steps(workload: Workload, block_size: int, limits: Limits) -> Iterator[Snapshot]:
    """Schedule the workload without a model, in a pool that never runs out; a snapshot after each step."""
    config = SchedulerConfig(**dataclasses.asdict(limits))
    blocks = BlockManager(limits.max_num_seqs * -(-limits.max_model_len // block_size) + 1, block_size)
    scheduler = Scheduler(config, blocks)
    for number, work in enumerate(workload.requests):
        params = sampling(work.max_tokens)
        scheduler.add(Request(str(number), work.prompt, params, max_model_len=limits.max_model_len))
    while (plan := scheduler.schedule()) is not None:
        token = 0
        scheduler.update(plan, [token] * len(plan.samplers))
        for sampler in plan.samplers:
            reason, stop_reason = check_stop(sampler.sequence, token)
            if reason is not None:
                scheduler.finish(sampler.sequence, reason, stop_reason)
        yield snapshot(scheduler)


def engine_steps(workload: Workload, block_size: int, limits: Limits, model: str, dtype: str) -> Iterator[Snapshot]:
    """Generate the workload with the real engine, a step and a token at a time; a snapshot after each step."""
    from jaxllm import LLM

    engine = LLM(model, dtype=dtype, block_size=block_size, overlap=False, speculative_config=None,
                 **dataclasses.asdict(limits)).engine
    for work in workload.requests:
        engine.add_request(work.prompt, sampling(work.max_tokens))
    while engine.has_unfinished():
        for output in engine.step():
            if output.error is not None:
                raise RuntimeError(f"{output.request_id} failed: {output.error.message}")
        yield snapshot(engine.scheduler)


def report(results: Sequence[Waste], limits: Limits) -> str:
    """The results as a table, with what contiguous memory would waste."""
    longest = f"{limits.max_model_len} each"
    header = ("slots per block", "paged", "(weighted)", longest, "known length", "peak, paged", longest, "known length")
    rows = [
        (each.block_size, percent(each.paged), percent(each.paged_weighted), percent(each.longest),
         percent(each.exact), f"{each.peak_allocated:,}", f"{each.peak_longest:,}", f"{each.peak_exact:,}")
        for each in results
    ]
    return ("share of the slots that hold nothing, mean over the steps (weighted: by slots), then the most slots "
            f"taken at once;\nthe columns '{longest}' and 'known length' are for contiguous reservations\n\n"
            + format_table(header, rows))


def judge(results: Sequence[Waste]) -> list[str]:
    """A line for each block size that has a limit."""
    return [
        f"{each.block_size} slots per block: {percent(each.paged)} unused, limit {percent(LIMITS[each.block_size])}: "
        + ("met" if each.paged < LIMITS[each.block_size] else "MISSED")
        for each in results if each.block_size in LIMITS
    ]


def whole_numbers(text: str) -> list[int]:
    """The numbers of a comma-separated list, all of them at least 1."""
    numbers = [int(number) for number in text.split(",")]
    if min(numbers) < 1:
        raise ValueError(text)
    return numbers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a limit is missed on W2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="W2", help="name or .json file (default: %(default)s)")
    parser.add_argument("--block-sizes", type=whole_numbers, default="8,16,32,64",
                        help="slots per block (default: %(default)s)")
    parser.add_argument("--max-model-len", type=int, default=8192, help="longest context (default: %(default)s)")
    parser.add_argument("--max-num-seqs", type=int, default=64, help="(default: %(default)s)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=512, help="(default: %(default)s)")
    parser.add_argument("--real", action="store_true", help="run the engine with a model")
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="with --real (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="with --real (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    limits = Limits(chosen.max_model_len, chosen.max_num_seqs, chosen.max_num_batched_tokens)
    try:
        workload = load_workload(chosen.workload)
        results = [
            Waste.of(size, list(engine_steps(workload, size, limits, chosen.model, chosen.dtype) if chosen.real
                                else scheduled_steps(workload, size, limits)))
            for size in chosen.block_sizes
        ]
    except JaxLLMError as error:
        parser.error(str(error))
    machine = describe_machine()
    print(machine_line(machine))
    print(f"{workload.name}: {len(workload.requests)} requests, {workload.prompt_tokens:,} prompt and "
          f"{workload.output_tokens:,} output tokens; {chosen.max_num_seqs} at once, {chosen.max_num_batched_tokens} "
          f"tokens a step; {'engine with ' + chosen.model if chosen.real else 'scheduler alone'}, {results[0].steps} "
          "steps\n\n" + report(results, limits))
    verdicts = judge(results) if workload.name == "W2" else []
    if verdicts:
        print("\n" + "\n".join(verdicts))
    details: dict[str, Any] = {"machine": machine, "workload": workload.name, "real": chosen.real,
                               "limits": dataclasses.asdict(limits)}
    if chosen.real:
        details |= {"model": chosen.model, "dtype": chosen.dtype}
    write_json(chosen.json, {**details, "results": [dataclasses.asdict(each) for each in results]})
    return int(any("MISSED" in line for line in verdicts))


if __name__ == "__main__":
    raise SystemExit(main())
