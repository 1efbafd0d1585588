"""The rows of ``compare.py``'s last table: what has to be how many times what, and whether it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from compare_runs import KV_SIZES, START, Key, Results
from peers.engines import (
    BLOCKS_A8,
    HF,
    INT8,
    LLAMACPP_Q4,
    OPENVINO,
    OPENVINO_Q4,
    ORT,
    OURS,
    PLAIN,
    VLLM,
    WIDE,
    EngineSpec,
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One demand.

    ours, theirs: what is compared; of several of theirs the best counts. figure, their_figure: of ``Figures``.
    floor: by what factor ours has to be better, at least. lower: whether less is better. scale, digits: for people.
    """

    name: str
    ours: Key
    theirs: tuple[Key, ...]
    figure: str
    floor: float
    lower: bool = False
    their_figure: str | None = None
    scale: float = 1.0
    digits: int = 1


MIB = 2.0**-20
ROWS = (
    Row("W1 decode tok/s", (OURS, "W1", "cold"), ((HF, "W1", "cold"),), "decode_rate", 1.3),
    Row("W1r decode tok/s, lookup on/off", (OURS, "W1r", "cold"), ((PLAIN, "W1r", "cold"),), "decode_rate", 1.8),
    Row("W2 output tok/s", (OURS, "W2", "cold"), ((VLLM, "W2", "cold"), (OPENVINO, "W2", "cold")), "output_rate", 0.8),
    Row("W2 output tok/s", (OURS, "W2", "cold"), ((LLAMACPP_Q4, "W2", "cold"),), "output_rate", 5.0),
    *(Row(f"{workload} {what}, {bits}", (ours, workload, "cold"), ((peer, workload, "cold"),), figure, floor)
      for ours, bits in ((INT8, "int8"), (BLOCKS_A8, "4 bits")) for workload, what, figure, floors in (
          ("W1", "decode tok/s", "decode_rate", {LLAMACPP_Q4: 1.5, OPENVINO_Q4: 1.3, ORT: 1.25}),
          ("W2", "output tok/s", "output_rate", {LLAMACPP_Q4: 6.0, OPENVINO_Q4: 1.3}))
      for peer, floor in floors.items()),
    Row("W5 output tok/s, sampled/greedy", (WIDE, "W5", "sampled"), ((WIDE, "W5", "greedy"),), "output_rate", 0.9),
    Row("W5 tokens computed per prompt", (WIDE, "W5", "one token"), ((WIDE, "W5", "one token"),), "computed", 1.0,
        lower=True, their_figure="prompt_tokens", digits=0),
    Row("W3 output tok/s, first run", (OURS, "W3", "cold"), ((VLLM, "W3", "cold"),), "output_rate", 0.8),
    Row("W3 output tok/s, second run", (OURS, "W3", "warm"), ((VLLM, "W3", "warm"),), "output_rate", 0.8),
    Row("W4 TTFT s", (OURS, "W4", "cold"), ((VLLM, "W4", "cold"),), "ttft", 1.0, lower=True, digits=2),
    Row("start to first token s", (OURS, START, f"{KV_SIZES[0]} GiB"), ((VLLM, START, f"{KV_SIZES[0]} GiB"),),
        "first_token", 10.0, lower=True, digits=2),
    *(Row(f"peak MiB of {what}, KV {gib} GiB", (OURS, START, f"{gib} GiB"), ((VLLM, START, f"{gib} GiB"),), figure, 2.0,
          lower=True, scale=MIB, digits=0)
      for gib in KV_SIZES for what, figure in (("start", "peak_start"), ("W2", "peak_batch"))),
)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A row with its figures; ``ratio`` is how many times better ours is. why: what is missing, where anything is."""

    row: Row
    ours: float | None
    theirs: float | None
    peer: str
    ratio: float | None
    why: str

    @property
    def met(self) -> bool | None:
        """Whether the demand is met, ``None`` if that is not known."""
        return None if self.ratio is None else self.ratio >= self.row.floor

    def cells(self) -> tuple[str, ...]:
        """As a line of the table."""
        row, answer = self.row, {True: "yes", False: "NO", None: "not measured"}[self.met]
        return (row.name, _text(self.ours, row), self.peer, _text(self.theirs, row),
                "-" if self.ratio is None else f"{self.ratio:.2f}", f"{row.floor:g}", answer,)

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {"row": self.row.name, "ours": self.ours, "peer": self.peer, "theirs": self.theirs, "ratio": self.ratio,
                "floor": self.row.floor, "met": self.met, "why": self.why}


HEADER = ("row", "jaxllm", "against", "theirs", "ratio", "floor", "met")


def judge(row: Row, results: Results, engines: Mapping[str, EngineSpec]) -> Verdict:
    """Compare the medians that there are."""
    figure = row.their_figure or row.figure
    ours = results.median(row.ours, row.figure)
    found = {key[0]: value for key in row.theirs if (value := results.median(key, figure)) is not None}
    absent = [key for key in (row.ours, *row.theirs) if results.median(key, figure) is None]
    reasons = dict.fromkeys(f"{key[0]}: {reason(key, results, engines)}" for key in absent)
    peer = (min if row.lower else max)(found, key=lambda name: found[name]) if found else row.theirs[0][0]
    theirs = found.get(peer)
    ratio = None
    if ours and theirs:
        ratio = theirs / ours if row.lower else ours / theirs
    name = "prompt tokens" if row.their_figure else peer
    return Verdict(row, ours, theirs, name, ratio, "; ".join(reasons))


def reason(key: Key, results: Results, engines: Mapping[str, EngineSpec]) -> str:
    """Why a figure is not there."""
    engine, workload, _ = key
    why = engines[engine].missing or results.problems.get((engine, workload))
    return why or "not among the engines and workloads chosen"


def _text(value: float | None, row: Row) -> str:
    return "-" if value is None else f"{value * row.scale:,.{row.digits}f}"
