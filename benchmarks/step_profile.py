"""Where does a step's time go: its costliest operations, what they are, and which kernels ran.

A step is the time from the first operation of one to that of the next, under the profiler. Time in which no operation
runs is the host's and XLA's: planning, dispatching, between operations. Speculation is off, so that each decoding step
has one token of each request.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import describe_machine, format_table, machine_line, write_json
from step_cases import Case, advance, cases_of, decoding, prefilling
from step_trace import Event, Operation, covered, cut_into_steps, read_program, record

from jaxllm.errors import JaxLLMError, ParameterError
from pallas_kernels import registry

if TYPE_CHECKING:
    from jaxllm import LLM

FIRST_PROGRAM = "jit_jaxllm_begin"
GAP = "no operation: host, dispatch"
LOOPS = "between the operations of loops"
IMPLEMENTATIONS = {"native": "cpu", "xla": "xla"}


@dataclasses.dataclass(frozen=True)
class Line:
    """One kind of operation in a step: milliseconds, their share of the step, and runs; medians over the steps."""

    what: str
    implementation: str
    ms: float
    share: float
    runs: float


@dataclasses.dataclass(frozen=True)
class Profile:
    """A step of a case, the costliest operations first."""

    case: str
    ms: float
    lines: list[Line]


def measure(llm: LLM, case: Case, steps: int) -> Profile:
    """Profile ``steps`` steps.

    Raises ``ParameterError`` for a case of which the engine cannot make such steps.
    """
    programs = llm.engine._runner.programs  # type: ignore[attr-defined]
    ran = set()
    run = programs._run

    def remembered(key: Any, *arguments: Any) -> Any:
        ran.add(key)
        return run(key, *arguments)

    llm.reset_prefix_cache()
    prepare = prefilling if case.chunk else decoding
    with prepare(llm, case, steps):
        programs._run = remembered
        try:
            events = record(lambda: advance(llm, steps + 2))
        finally:
            programs._run = run
    if len({key.kind for key in ran if key.program == "layers"}) > 1:
        raise ParameterError("model", llm.engine.config, "a model whose layers are all of one kind")
    operations = {
        (f"jit_jaxllm_{key.program}", name): operation
        for key in ran for name, operation in read_program(programs.compile(key).as_text()).items()}
    return summarize(case.name, cut_into_steps(events, FIRST_PROGRAM)[-steps:], operations)


def summarize(name: str, steps: Sequence[tuple[float, float, Sequence[Event]]],
              operations: Mapping[tuple[str, str], Operation]) -> Profile:
    """Add up each step's operations of a kind; medians over the steps."""
    totals: list[dict[tuple[str, str], tuple[float, int]]] = []
    for start, end, events in steps:
        kinds: dict[tuple[str, str], tuple[float, int]] = {}
        single: list[tuple[float, float]] = []
        every: list[tuple[float, float]] = []
        for event in events:
            operation = operations.get((event.program, event.name), Operation(f"{event.program} {event.name}"))
            every.append((event.start, min(event.end, end)))
            if operation.is_container:
                continue
            single.append(every[-1])
            kind = (operation.what, operation.implementation)
            time, runs = kinds.get(kind, (0.0, 0))
            kinds[kind] = (time + event.end - event.start, runs + 1)
        busy = covered(every)
        kinds[GAP, ""] = (end - start - busy, 1)
        kinds[LOOPS, ""] = (busy - covered(single), 1)
        totals.append(kinds)
    length = statistics.median(end - start for start, end, _ in steps)
    lines = []
    for kind in dict.fromkeys(kind for kinds in totals for kind in kinds):
        nanoseconds = statistics.median(kinds.get(kind, (0.0, 0))[0] for kinds in totals)
        count = statistics.median(kinds.get(kind, (0.0, 0))[1] for kinds in totals)
        lines.append(Line(*kind, nanoseconds / 1e6, nanoseconds / length, count))
    lines.sort(key=lambda line: line.ms, reverse=True)
    return Profile(name, length / 1e6, lines)


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the process for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def choose_kernels(kernels: str) -> dict[str, str]:
    """The variables that choose all kernels. Raises ``ValueError`` if one cannot run here."""
    if kernels == "default":
        return {}
    name = IMPLEMENTATIONS[kernels]
    for operation in registry.operations():
        registry.choose(operation, name)
    return {f"PALLAS_KERNELS_{operation.upper()}": name for operation in registry.operations()}


def table(profile: Profile, top: int) -> list[tuple[str, str, str, str, str]]:
    """Rows of text: the costliest operations, what is left, and the step."""
    shown, others = profile.lines[:top], profile.lines[top:]
    rows = [(line.what, line.implementation or "-", f"{line.runs:g}", f"{line.ms:.2f}", f"{100 * line.share:.1f} %")
            for line in shown]
    left = sum(line.ms for line in others)
    rows.append((f"{len(others)} others", "", "", f"{left:.2f}", f"{100 * left / profile.ms:.1f} %"))
    rows.append(("the step", "", "", f"{profile.ms:.2f}", ""))
    return rows


HEADER = ("operation", "kernel", "runs", "ms", "of the step")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="as for LLM (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="as for LLM (default: %(default)s)")
    parser.add_argument("--cases", type=cases_of, default="decode 1x200,decode 64x200,prefill 512@3584",
                        help="REQUESTSxCONTEXT, or CHUNK@TOKENS-BEFORE (default: %(default)s)")
    parser.add_argument("--kernels", choices=("default", *IMPLEMENTATIONS), default="default",
                        help="which implementations of all kernels (default: what the registry chooses)")
    parser.add_argument("--steps", type=int, default=20, help="steps to take medians of (default: %(default)s)")
    parser.add_argument("--top", type=int, default=10, help="operations to print (default: %(default)s)")
    parser.add_argument("--kv-cache-bytes", default="1G", help="as for LLM (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    for name in ("steps", "top"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name}={getattr(chosen, name)}: at least 1")
    chunks = {case.chunk for case in chosen.cases if case.chunk}
    if len(chunks) > 1:
        parser.error(f"--cases: prefill chunks of {sorted(chunks)} tokens; one size, which is max_num_batched_tokens")
    try:
        variables = choose_kernels(chosen.kernels)
    except ValueError as error:
        parser.error(f"--kernels={chosen.kernels}: {error}")

    from jaxllm import LLM

    machine = describe_machine()
    options: dict[str, Any] = {"dtype": chosen.dtype, "kv_cache_bytes": chosen.kv_cache_bytes,
                               "speculative_config": None}
    if chunks:
        options["max_num_batched_tokens"] = chunks.pop()
    print(machine_line(machine))
    print(f"{chosen.model}; {chosen.kernels} kernels; medians of {chosen.steps} steps", flush=True)
    # Programs from a cache may be without the names of their operations, which are no part of what they are found by.
    with environment({"JAXLLM_COMPILATION_CACHE": "off", **variables}):
        llm = LLM(chosen.model, **options)
        profiles = []
        for case in chosen.cases:
            try:
                profiles.append(measure(llm, case, chosen.steps))
            except JaxLLMError as error:
                parser.error(str(error))
            print(f"\n{case.name}\n" + format_table(HEADER, table(profiles[-1], chosen.top)), flush=True)
    write_json(chosen.json, {
        "machine": machine, "model": chosen.model, "kernels": chosen.kernels, "steps": chosen.steps,
        "top": chosen.top, "options": options, "profiles": [dataclasses.asdict(each) for each in profiles]})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
