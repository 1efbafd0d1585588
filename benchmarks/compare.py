"""How does jaxllm compare with other engines on the same work, side by side?

Runs jaxllm, some of its variants and whichever peers are installed, each in a process of its own under its own Python,
over the same token ids. They take turns, one works while the others are paused; medians of the timed runs are compared.
The last table holds the figures against what they have to be. Peers that are missing, and engines that fail, are named
with the reason. benchmarks/README.md tells how to install the peers.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compare_rows import HEADER, MIB, ROWS, judge
from compare_runs import PLANS, START, START_ENGINES, Results, Session, compare_starts, compare_workload
from harness import describe_machine, format_table, load_workload, machine_line, write_json
from peers.engines import OURS, PEER_MODELS, EngineSpec, PeerModel, find_engines, find_model

from jaxllm.errors import JaxLLMError

NAMES = (*PLANS, START)
LOOKUP = "W1r"
"""The workload that speculation is measured with."""
SPEEDS = (("ttft", "TTFT s", 3), ("decode_rate", "decode tok/s", 1), ("output_rate", "output tok/s", 1),
          ("seconds", "wall s", 2))


def workload_table(name: str, results: Results, specs: Mapping[str, EngineSpec]) -> str:
    """The figures of all engines at one workload; ratios are of the output tokens/s to jaxllm's."""
    rows = []
    keys = [key for key in results.runs if key[1] == name]
    for key in keys:
        values = {figure: results.median(key, figure) for figure, _, _ in SPEEDS}
        seconds = [run["seconds"] or 0.0 for run in results.runs[key]]
        ours = results.median((OURS, *key[1:]), "output_rate")
        equal = results.agreement(key)
        rows.append((
            key[0] + ("" if len(PLANS[name].passes) == 1 else f", {key[2]}"),
            *("-" if values[figure] is None else f"{values[figure]:.{digits}f}" for figure, _, digits in SPEEDS),
            f"{100 * (max(seconds) - min(seconds)) / (values['seconds'] or 1):.0f} %",
            "-" if ours is None else f"{(values['output_rate'] or 0) / ours:.2f}",
            "-" if equal is None else f"{100 * equal:.0f} %"))
    workload = load_workload(name)
    title = f"{name}: {workload.note} ({len(workload.requests)} requests, {workload.prompt_tokens:,} prompt tokens)"
    return title + "\n" + format_table(
        ("engine", *(text for _, text, _ in SPEEDS), "spread", "to jaxllm", "same tokens"), rows)


def start_table(results: Results) -> str:
    """Starts and memory."""
    rows = []
    for key in [key for key in results.runs if key[1] == START]:
        first, start, batch = (results.median(key, figure) for figure in ("first_token", "peak_start", "peak_batch"))
        rows.append((f"{key[0]}, KV {key[2]}", f"{first or 0:.2f}", f"{(start or 0) * MIB:,.0f}",
                     "-" if batch is None else f"{batch * MIB:,.0f}"))
    return "start: a fresh process to its first token, and the most memory of its process tree\n" + format_table(
        ("engine", "first token s", "peak MiB of start", "of W2"), rows)


def chosen_engines(text: str | None, specs: Mapping[str, EngineSpec]) -> list[str]:
    """The engines that were asked for. Raises ``ValueError`` for unknown ones."""
    names = list(specs) if text is None else text.split(",")
    unknown = [name for name in names if name not in specs]
    if unknown:
        raise ValueError(f"--engines: no {', '.join(unknown)}; there are {', '.join(specs)}")
    return names


def chosen_workloads(text: str | None, model: PeerModel) -> list[str]:
    """The workloads that were asked for, or all that say anything about the model. Raises ``ValueError`` for others."""
    names = [name for name in NAMES if model.own_ids or name != LOOKUP] if text is None else text.split(",")
    for name in names:
        if name not in NAMES:
            raise ValueError(f"--workloads: no {name!r}; there are {', '.join(NAMES)}")
        if name == LOOKUP and not model.own_ids:
            raise ValueError(f"--workloads: {name} measures speculation on text, and the workloads' token ids are no "
                             f"text of {model.name}")
    return names


def run(workloads: Iterable[str], engines: Sequence[str], specs: Mapping[str, EngineSpec], repeat: int, logs: Path,
        timeout: float, keep: Callable[[Results], None] = lambda results: None) -> Results:
    """Measure everything that can be. keep: called with what is there after each workload."""
    results = Results()
    there = [name for name in engines if specs[name].missing is None]
    with Session(specs, logs, timeout, results) as session:
        for name in workloads:
            if name == START:
                session.close()
                compare_starts(session, results, [each for each in START_ENGINES if each in there], repeat)
            else:
                compare_workload(session, results, name, [each for each in PLANS[name].engines if each in there], specs,
                                 repeat)
            keep(results)
    return results


def as_json(results: Results) -> dict[str, Any]:
    """Every run, and the medians."""
    return {
        "versions": results.versions,
        "problems": [{"engine": engine, "workload": workload, "why": why}
                     for (engine, workload), why in results.problems.items()],
        "runs": [{"engine": key[0], "workload": key[1], "pass": key[2], "runs": runs,
                  "median": {name: results.median(key, name) for name in runs[0]},
                  "same_tokens": results.agreement(key)}
                 for key, runs in results.runs.items()],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare; 1 if an engine failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-root", type=Path, default=os.environ.get("PEERS_ROOT"),
                        help="folder with the peers' venvs/ and models/ (default: $PEERS_ROOT)")
    parser.add_argument("--engines", help="names, separated by commas (default: all)")
    parser.add_argument("--workloads", help=f"names, separated by commas (default: {','.join(NAMES)}, without "
                        f"{LOOKUP} where the model runs without speculation)")
    parser.add_argument("--repeat", type=int, default=3, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one timed run of each")
    parser.add_argument("--model", default=PEER_MODELS[0].name, help="what all engines run, one of "
                        f"{', '.join(model.name for model in PEER_MODELS)} (default: %(default)s)")
    parser.add_argument("--dtype", default="bfloat16", help="jaxllm's (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that a run may take (default: %(default)s)")
    parser.add_argument("--logs", type=Path, help="folder for what the engines print (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="write the figures to this file, anew after each workload")
    chosen = parser.parse_args(arguments)
    repeat = 1 if chosen.quick else chosen.repeat
    if repeat < 1:
        parser.error(f"--repeat={repeat}: at least 1")
    try:
        model = find_model(chosen.model)
        workloads = chosen_workloads(chosen.workloads, model)
        specs = find_engines(chosen.peers_root, model, chosen.dtype)
        engines = chosen_engines(chosen.engines, specs)
        for name in workloads:
            if name != START:
                load_workload(name)
    except (JaxLLMError, ValueError) as error:
        parser.error(str(error))
    logs = Path(tempfile.mkdtemp(prefix="compare-")) if chosen.logs is None else chosen.logs
    logs.mkdir(parents=True, exist_ok=True)
    # So that engines are ended by whatever ends this process.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    machine = describe_machine()

    def verdicts_of(results: Results) -> list[Any]:
        return [judge(row, results, specs) for row in ROWS if row.ours[1] in workloads]

    def keep(results: Results) -> None:
        write_json(chosen.json, {
            "machine": machine, "repeat": repeat, "model": model.name, "dtype": chosen.dtype,
            "engines": {name: {"about": specs[name].about, "missing": specs[name].missing} for name in engines},
            **as_json(results), "rows": [verdict.record() for verdict in verdicts_of(results)]})

    results = run(workloads, engines, specs, repeat, logs, chosen.timeout, keep)
    verdicts = verdicts_of(results)
    print(machine_line(machine) + f"\n{model.name}, medians of {repeat} runs; logs in {logs}\n")
    names = {key[1] for key in results.runs}
    print("\n\n".join(start_table(results) if name == START else workload_table(name, results, specs)
                      for name in workloads if name in names))
    print("\n" + format_table(HEADER, [verdict.cells() for verdict in verdicts]))
    print("\n" + "\n".join(_remarks(engines, specs, results, verdicts)))
    return int(bool(results.problems))


def _remarks(engines: Sequence[str], specs: Mapping[str, EngineSpec], results: Results, verdicts: Sequence[Any]
             ) -> list[str]:
    """What the engines are, which are missing or failed, and what that leaves out."""
    lines = []
    for name in engines:
        spec = specs[name]
        version = f" ({results.versions[name]})" if name in results.versions else ""
        lines.append(f"{name}: {spec.about}{version}" + (f" - MISSING: {spec.missing}" if spec.missing else ""))
    lines += [f"{engine} FAILED at {workload}: {why}" for (engine, workload), why in results.problems.items()]
    lines += [f"{verdict.row.name}: without {verdict.why}" for verdict in verdicts if verdict.why]
    return lines


if __name__ == "__main__":
    sys.exit(main())
