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
    """Tokens of a step, packed by slot; numpy on its way to the device, a tracer inside the program.

    All are parts of one array, as each argument of a program costs microseconds.

    token_ids: padded to the token bucket. fed: for each token, the slot whose newest sampled token takes its place, or
    -1. query_start: slot r owns tokens ``query_start[r]:query_start[r + 1]``.
    lengths: each slot's context, this step's tokens included (0 for idle slots). sample_rows: for each token to
    sample, the index of the hidden row it is sampled from; padded with the number of tokens, the index of
    none, up to the largest row bucket.
    """

    numbers: Int[Array, " 2*T+2*R+1+B"]
    num_tokens: int = dataclasses.field(metadata={"static": True})
    num_slots: int = dataclasses.field(metadata={"static": True})

    @staticmethod
    def size(num_tokens: int, num_slots: int, num_rows: int) -> int:
        """How many numbers there are, with ``num_rows`` in ``sample_rows``."""
        return 2 * num_tokens + 2 * num_slots + 1 + num_rows

    @property
    def token_ids(self) -> Int[Array, " T"]:
        """As above."""
        return self.numbers[:self.num_tokens]

    @property
    def fed(self) -> Int[Array, " T"]:
        """As above."""
        return self.numbers[self.num_tokens:2 * self.num_tokens]

    @property
    def query_start(self) -> Int[Array, " R+1"]:
        """As above."""
        return self._of_slots[:self.num_slots + 1]

    @property
    def lengths(self) -> Int[Array, " R"]:
        """As above."""
        return self._of_slots[self.num_slots + 1:2 * self.num_slots + 1]

    @property
    def sample_rows(self) -> Int[Array, " B"]:
        """As above."""
        return self._of_slots[2 * self.num_slots + 1:]

    @property
    def _of_slots(self) -> Array:
        return self.numbers[2 * self.num_tokens:]


def build_batch(plan: StepPlan, token_bucket: int, max_num_seqs: int, max_rows: int) -> StepBatch:
    """Lay a plan out, in memory of its own: the device may read it while the next is built.

    Loops over the step's requests at most, never over their tokens.
    """
    numbers: Any = np.zeros(StepBatch.size(token_bucket, max_num_seqs, max_rows), np.int32)
    batch = StepBatch(numbers, token_bucket, max_num_seqs)
    query_start: Any = batch.query_start
    query_start[1:][plan.slot] = plan.count
    query_start.cumsum(out=query_start)
    first = query_start[plan.slot]
    batch.lengths[plan.slot] = plan.start + plan.count
    batch.token_ids[:plan.num_tokens] = plan.token_ids()
    batch.fed[:] = -1
    batch.fed[first[plan.fed]] = plan.slot[plan.fed]
    rows = plan.sampler_row
    batch.sample_rows[len(rows):] = token_bucket
    batch.sample_rows[:len(rows)] = (first - plan.start)[rows] + plan.sampler_position - 1
    return batch


def padded_lines(lines: np.ndarray, size: int, fill: int) -> np.ndarray:
    """``lines`` with ``fill`` lines appended up to ``size``."""
    padded = np.full((size, lines.shape[1]), fill, lines.dtype)
    padded[:len(lines)] = lines
    return padded
