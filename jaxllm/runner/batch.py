"""``StepBatch``: what one ``forward`` needs besides parameters, cache and tables. Its structure never changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Int

from jaxllm.engine.plan import StepPlan


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepBatch:
    """Tokens of a step, packed by slot; numpy arrays on their way to the device, tracers inside the program.

    token_ids: padded to the token bucket. fed: for each token, the slot whose newest sampled token takes its place, or
    -1. query_start: slot r owns tokens ``query_start[r]:query_start[r + 1]``.
    lengths: each slot's context, this step's tokens included (0 for idle slots). sample_rows: for each token to
    sample, the index of the hidden row it is sampled from; padded with 0 up to the largest row bucket.
    """

    token_ids: Int[Array, " T"]
    fed: Int[Array, " T"]
    query_start: Int[Array, " R1"]
    lengths: Int[Array, " R"]
    sample_rows: Int[Array, " B"]


def build_batch(plan: StepPlan, token_bucket: int, max_num_seqs: int, max_rows: int) -> StepBatch:
    """Lay a plan out as arrays. Loops over the step's requests, never over their tokens."""
    counts = np.zeros(max_num_seqs, np.int32)
    counts[plan.slot] = plan.count
    query_start = np.zeros(max_num_seqs + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    lengths = np.zeros(max_num_seqs, np.int32)
    lengths[plan.slot] = plan.start + plan.count
    token_ids = np.zeros(token_bucket, np.int32)
    token_ids[:plan.num_tokens] = plan.token_ids()
    fed = np.full(token_bucket, -1, np.int32)
    fed_slots = plan.slot[plan.fed]
    fed[query_start[fed_slots]] = fed_slots
    sample_rows = np.zeros(max_rows, np.int32)
    rows = plan.sampler_row
    sample_rows[:len(rows)] = query_start[plan.slot[rows]] + plan.sampler_position - 1 - plan.start[rows]
    arrays: Any = (token_ids, fed, query_start, lengths, sample_rows)
    return StepBatch(*arrays)


def padded_lines(lines: np.ndarray, size: int, fill: int) -> np.ndarray:
    """``lines`` with ``fill`` lines appended up to ``size``."""
    padded = np.full((size, lines.shape[1]), fill, lines.dtype)
    padded[:len(lines)] = lines
    return padded
