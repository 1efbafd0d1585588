"""Turn the JSON reports of ``compare.py``, ``roofline.py``, ``scaling.py`` and ``step_profile.py`` into the tables of
docs/performance.md, so that no figure there is typed.

With ``--write``, the tables go between the document's lines ``<!-- begin NAME.py -->`` and ``<!-- end NAME.py -->``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Report = Mapping[str, Any]
MIB = 2.0**-20


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None) -> str:
    """Three digits that matter, or a dash."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def comparison(report: Report) -> str:
    """The demands, and all engines' figures."""
    rows = []
    for row in report["rows"]:
        scale = MIB if "MiB" in row["row"] else 1.0
        ours, theirs = (None if value is None else value * scale for value in (row["ours"], row["theirs"]))
        met = "not measured" if row["met"] is None else "yes" if row["met"] else "no"
        rows.append((row["row"], number(ours), row["peer"], number(theirs), number(row["ratio"]), f"{row['floor']:g}",
                     met))
    return markdown(("", "jaxllm", "against", "theirs", "ratio", "at least", "met"), rows) + "\n\n" + engines(report)


def engines(report: Report) -> str:
    """One line per engine."""
    medians = {(run["engine"], run["workload"], run["pass"]): run["median"] for run in report["runs"]}
    columns: dict[str, tuple[str, str, str]] = {
        "W1 decode tok/s": ("W1", "cold", "decode_rate"), "W2 output tok/s": ("W2", "cold", "output_rate"),
        "W3 output tok/s": ("W3", "cold", "output_rate"), "again": ("W3", "warm", "output_rate"),
        "W4 TTFT s": ("W4", "cold", "ttft"), "start s": ("start", "4 GiB", "first_token"),
        "peak MiB of W2, KV 4 GiB": ("start", "4 GiB", "peak_batch"),
    }
    rows = []
    for engine in report["engines"]:
        values = [medians.get((engine, workload, name), {}).get(figure) for workload, name, figure in columns.values()]
        values[-1] = None if values[-1] is None else values[-1] * MIB
        if any(value is not None for value in values):
            rows.append((engine, *map(number, values)))
    return markdown(("", *columns), rows)


def roofline(report: Report) -> str:
    """Bounds, and what was measured."""
    speed = report["speed"]
    rows = []
    for bound in report["bounds"]:
        rate = report["measured"].get(bound["workload"])
        rows.append((
            bound["workload"], number(bound["prompts"]["bytes"] / 1e9), number(bound["prompts"]["flops"] / 1e9),
            number(bound["prompts_seconds"]), number(bound["decoding"]["bytes"] / 1e9),
            number(bound["decoding"]["flops"] / 1e9), number(bound["decoding_seconds"]), number(bound["output_rate"]),
            number(rate), "-" if rate is None else f"{100 * rate / bound['output_rate']:.0f} %"))
    header = ("", "prompts: GB", "GFLOP", "least s", "decoding: GB", "GFLOP", "least s", "most output tok/s",
              "measured", "of it")
    return (f"{speed['bytes_per_second'] / 1e9:.1f} GB/s, {speed['flops_per_second'] / 1e9:,.0f} GFLOP/s\n\n"
            + markdown(header, rows))


def scaling(report: Report) -> str:
    """By requests and by contexts."""
    loads = [(str(each["requests"]), number(each["output_rate"]), number(each["total_rate"]), number(each["host_ms"]),
              number(each["step_ms"])) for each in report["loads"]]
    contexts = [(f"{each['tokens']:,}", number(each["decode_ms"]), number(each["chunk_ms"]))
                for each in report["contexts"]]
    header = ("requests", "output tok/s", "total tok/s", "host ms per step", "ms, all decoding")
    return (markdown(header, loads) + "\n\n"
            + markdown(("context", "ms per decoding step", "ms per 512 prompt tokens"), contexts))


def step_profile(report: Report) -> str:
    """The costliest operations of each kind of step."""
    parts = [f"{report['kernels']} kernels, medians of {report['steps']} steps"]
    for profile in report["profiles"]:
        lines, others = profile["lines"][:report["top"]], profile["lines"][report["top"]:]
        rows = [(line["what"], line["implementation"] or "-", f"{line['runs']:g}", number(line["ms"]),
                 f"{100 * line['share']:.1f} %") for line in lines]
        left = sum(line["ms"] for line in others)
        rows.append((f"{len(others)} others", "", "", number(left), f"{100 * left / profile['ms']:.1f} %"))
        parts.append(markdown((f"{profile['case']}: {number(profile['ms'])} ms", "kernel", "runs", "ms", "of the step"),
                              rows))
    return "\n\n".join(parts)


KINDS: dict[str, tuple[str, Callable[[Report], str]]] = {
    "rows": ("compare.py", comparison), "bounds": ("roofline.py", roofline), "loads": ("scaling.py", scaling),
    "profiles": ("step_profile.py", step_profile)}
"""By a key that only reports of that kind have: the script that made it, and what makes its tables."""


def insert(document: str, name: str, tables: str) -> str:
    """The document with these tables between the lines that name the script. Raises ``ValueError`` without them."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    if begin not in document or end not in document:
        raise ValueError(f"no lines {begin.strip()} and {end.strip()}")
    before, _, rest = document.partition(begin)
    return before + begin + "\n" + tables + "\n\n" + end + rest.partition(end)[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables, or write them into a document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+", help="JSON files")
    parser.add_argument("--write", type=Path, help="the document that gets the tables, which are printed otherwise")
    chosen = parser.parse_args(arguments)
    document = None if chosen.write is None else chosen.write.read_text()
    for path in chosen.reports:
        report = json.loads(path.read_text())
        name, make = next((kind for key, kind in KINDS.items() if key in report), (None, None))
        if name is None or make is None:
            parser.error(f"{path} is no report of compare.py, roofline.py, scaling.py or step_profile.py")
        if document is None:
            print(make(report) + "\n")
            continue
        try:
            document = insert(document, name, make(report))
        except ValueError as error:
            parser.error(f"{chosen.write} has {error}")
    if document is not None:
        chosen.write.write_text(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
