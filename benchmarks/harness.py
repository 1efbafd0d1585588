"""What the benchmarks share: workloads, the machine they ran on, tables and JSON files."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxllm.errors import ParameterError

WORKLOADS = Path(__file__).parent / "workloads"


@dataclasses.dataclass(frozen=True)
class Work:
    """One request: its prompt's token ids and how many tokens to generate, whatever they are."""

    prompt: list[int]
    max_tokens: int


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests that are submitted together.

    sampling: fields of ``SamplingParams`` for all of them; greedy where empty.
    """

    name: str
    note: str
    requests: tuple[Work, ...]
    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(work.prompt) for work in self.requests)

    @property
    def output_tokens(self) -> int:
        """Tokens to generate for all samples of all requests."""
        return sum(work.max_tokens for work in self.requests) * int(self.sampling.get("n", 1))

    @property
    def shared_prefix(self) -> int:
        """With how many equal tokens all prompts begin; 0 for a single request."""
        if len(self.requests) < 2:
            return 0
        columns = zip(*(work.prompt for work in self.requests), strict=False)
        return sum(1 for _ in itertools.takewhile(lambda tokens: len(set(tokens)) == 1, columns))


def load_workload(name: str) -> Workload:
    """A workload by its name in ``benchmarks/workloads``, or from a JSON file of the same form.

    Raises ``ParameterError`` if there is none, or the file is not one.
    """
    path = Path(name) if name.endswith(".json") else WORKLOADS / f"{name}.json"
    known = ", ".join(sorted(file.stem for file in WORKLOADS.glob("*.json")))
    allowed = f"one of {known}, or a .json file with a list of requests, each of a prompt (token ids) and max_tokens"
    try:
        content = json.loads(path.read_text())
        requests = tuple(Work(list(each["prompt"]), int(each["max_tokens"])) for each in content["requests"])
        sampling = dict(content.get("sampling", {}))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ParameterError("workload", name, f"{allowed} ({type(error).__name__}: {error})") from None
    if not requests or not all(work.prompt and work.max_tokens > 0 for work in requests):
        raise ParameterError("workload", name, "a workload with at least one request, none of them empty")
    return Workload(content.get("name", path.stem), content.get("note", ""), requests, sampling)


def describe_machine() -> dict[str, Any]:
    """What the figures depend on: CPU model, usable cores, how busy they are (load average), versions."""
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cpu": _cpu_model(),
        "cores": len(affinity(0)) if affinity else os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "jax": importlib.metadata.version("jax"),
        "jaxllm": importlib.metadata.version("jaxllm"),
    }


def machine_line(machine: Mapping[str, Any]) -> str:
    """``describe_machine`` in one line."""
    return (f"{machine['cpu']}, {machine['cores']} cores (load {machine['load_average']}), "
            f"jax {machine['jax']}, jaxllm {machine['jaxllm']}, Python {machine['python']}")


def format_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns of text, the first aligned to the left and the others to the right."""
    lines = [[str(cell) for cell in line] for line in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in
                                                     zip(line[1:], widths[1:], strict=True))]) for line in lines]
    return "\n".join([text[0], "  ".join("-" * width for width in widths), *text[1:]])


def percent(fraction: float) -> str:
    """A fraction as a percentage with two decimals."""
    return f"{100 * fraction:.2f} %"


def write_json(path: Path | None, report: Mapping[str, Any]) -> None:
    """Write a report, if a path was given."""
    if path is not None:
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(f"\nwritten to {path}")


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
