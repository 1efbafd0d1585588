"""Compile many cases in one process: ``python -m pallas_kernels.aot MODULE:FUNCTION [--gpu h200 ...] [--match TEXT]``.

FUNCTION gets the name of a GPU and returns `Case`s, an iterable. Every case prints one line of JSON: "gpu", "case",
"kernels" and "collectives", XLA's by kind; or "error". A kernel is a `Kernel` without its PTX, but with how often the
``INSTRUCTIONS`` stand in it, and with how many groups of copies, and of products of warpgroups, may still be under way
where it waits for one ("copies_ahead", "products_ahead"). ``--ptx FOLDER`` also writes the PTX. The exit code is 1 if a
case failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from pallas_kernels import aot

INSTRUCTIONS = (
    "mma.sync", "wgmma.mma_async", "wgmma.wait_group", "tcgen05.mma", "cp.async.cg", "cp.async.commit_group",
    "cp.async.wait_group", "cp.async.bulk", "cp.async.bulk.tensor", "ldmatrix", "mbarrier", "ld.local", "st.local",
)

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def describe(kernel: aot.Kernel) -> dict[str, Any]:
    """A kernel as JSON has it."""
    fields = {name: getattr(kernel, name) for name in (
        "name", "target", "registers", "stack_bytes", "spill_bytes", "shared_bytes", "threads")}
    waits = [int(number, 0) for number in re.findall(r"cp\.async\.wait_group\s+(\w+)", kernel.ptx)]
    counts = {name: kernel.count(name) for name in INSTRUCTIONS}
    products = [int(number) for number in re.findall(r"wgmma\.wait_group\.sync\.aligned\s+(\d+)", kernel.ptx)]
    ahead = {"copies_ahead": max(waits, default=0), "products_ahead": max(products, default=0)}
    return fields | ahead | {"instructions": counts}


def count_collectives(program: str) -> dict[str, int]:
    """How many collectives of each kind stand in a program of XLA's, as text."""
    counts = {name: len(re.findall(rf" {name}(?:-start)?\(", program)) for name in COLLECTIVES}
    return {name: count for name, count in counts.items() if count}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pallas_kernels.aot", description=__doc__)
    parser.add_argument("cases", metavar="MODULE:FUNCTION")
    parser.add_argument("--gpu", nargs="+", choices=list(aot.GPUS), default=list(aot.GPUS))
    parser.add_argument("--match", nargs="+", default=[""], help="only cases whose names hold one of these")
    parser.add_argument("--ptx", type=Path, help="a folder for the PTX of each kernel")
    arguments = parser.parse_args()
    aot.prepare()
    module, _, function = arguments.cases.partition(":")
    cases = getattr(importlib.import_module(module), function)
    failed = False
    for gpu in arguments.gpu:
        for case in cases(gpu):
            if not any(text in case.name for text in arguments.match):
                continue
            line: dict[str, Any] = {"gpu": gpu, "case": case.name}
            try:
                compiled = aot.compile_for(gpu, case.function, *case.arguments, **case.options)
                line["kernels"] = [describe(kernel) for kernel in compiled.kernels]
                line["collectives"] = count_collectives(compiled.executable.as_text() or "")
                for number, kernel in enumerate(compiled.kernels if arguments.ptx else ()):
                    arguments.ptx.mkdir(parents=True, exist_ok=True)
                    name = f"{gpu}-{case.name}-{number}-{kernel.name}".replace("/", "_").replace(" ", "_")
                    (arguments.ptx / f"{name}.ptx").write_text(kernel.ptx)
            except Exception as error:  # a report of each, whatever a compiler raises
                line["error"], failed = f"{type(error).__name__}: {str(error)[:4000]}", True
            print(json.dumps(line), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
