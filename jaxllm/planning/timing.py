"""``StepTime``: the least time of a step on a mesh, and what it is spent on (Williams et al. 2009, Roofline)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxllm.bench.roofline import Cost
from jaxllm.planning.collectives import Collective
from jaxllm.planning.gpus import GPU
from jaxllm.planning.load import StageLoad

Limit = Literal["compute", "memory bandwidth", "links"]


@dataclasses.dataclass(frozen=True)
class StepTime:
    """Steady steps of one kind.

    A stage's time is the longer of reading and computing, which overlap, and then that of its collectives, which wait
    for them. With several stages as many steps are under way, each on another share of the sequences.

    tokens_per_second: of all replicas. tokens: that a step of one replica computes. seconds: from a step's begin to its
    end, through all stages: for a decoding step the time between two tokens of a sequence. compute_seconds,
    memory_seconds, links_seconds: of the slowest stage, each for itself. limit: the longest of them.
    """

    tokens_per_second: float
    tokens: int
    seconds: float
    compute_seconds: float
    memory_seconds: float
    links_seconds: float
    limit: Limit


def step_time(costs: Sequence[Cost], exchanged: Sequence[Sequence[Collective]], gpu: GPU, dtype: np.dtype, *,
              tokens: int, under_way: int, total: int) -> StepTime:
    """costs, exchanged: of each stage. tokens: of one replica's step. under_way: how many of its steps are under way at
    once. total: tokens of all these steps, over all replicas."""
    flops = flops_per_second(gpu, dtype)
    stages = []
    for cost, collectives in zip(costs, exchanged, strict=True):
        handed = sum(each.seconds for each in collectives if each.kind == "send")
        links = sum(each.seconds for each in collectives) - handed
        stages.append((cost.flops / flops, cost.bytes / gpu.bandwidth, links, handed))
    busy = [max(compute, memory) + links for compute, memory, links, _ in stages]
    seconds = sum(busy) + sum(handed for *_, handed in stages)
    # Until a step can follow itself, the slowest stage computes all that are under way.
    round_seconds = max(seconds, under_way * max(busy))
    compute, memory, links, handed = stages[busy.index(max(busy))]
    longest: dict[Limit, float] = {"compute": compute, "memory bandwidth": memory, "links": links + handed}
    return StepTime(
        tokens_per_second=total / round_seconds, tokens=tokens, seconds=seconds, compute_seconds=compute,
        memory_seconds=memory, links_seconds=links + handed, limit=max(longest, key=lambda limit: longest[limit]))


def flops_per_second(gpu: GPU, dtype: np.dtype) -> float:
    """Of products of activations in this dtype: float32 goes through the tensor cores at half of bfloat16's rate."""
    return gpu.bfloat16_flops / (2 if dtype.itemsize == 4 else 1)


def decode_cost(load: StageLoad, sequences: int, group_tokens: int, context: int) -> Cost:
    """One more token of so many sequences, each with ``context`` tokens before it."""
    keys = sequences * sum(layers * min(context, window or context) for window, layers in load.windows)
    return load.step(sequences, sequences, group_tokens, keys, keys)


def prefill_cost(load: StageLoad, tokens: int, group_tokens: int, prompt: int) -> Cost:
    """So many tokens of prompts of ``prompt`` tokens each, which are computed one after the other."""
    pairs = sum(layers * tokens * _mean_keys(prompt, window) for window, layers in load.windows)
    # A chunk reads the keys before it: none of those of prompts that are whole in it, half of a longer one's.
    earlier = max(prompt - tokens, 0) / 2
    keys = sum(layers * min(earlier, window or earlier) for window, layers in load.windows)
    return load.step(tokens, max(tokens // prompt, 1), group_tokens, keys, pairs)


def _mean_keys(prompt: int, window: int | None) -> float:
    """Keys that a query of a prompt sees, on average."""
    whole = prompt if window is None else min(prompt, window)
    return (whole * (whole + 1) / 2 + (prompt - whole) * whole) / prompt
