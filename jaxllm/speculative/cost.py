"""What it costs to compute more tokens in a step, and how many pay. No clock: the same requests give the same steps."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from jaxllm.config import EngineConfig
from jaxllm.runner.buckets import buckets

TOKENS_PER_WEIGHT_READ = 40
"""So many tokens' arithmetic takes as long as reading the weights once, whatever their number: on CPUs with bfloat16
units 30 to 80, on accelerators more."""
LEAST_GAIN = 0.1
"""What a draft must bring where the step has room for it anyway: its share of attention and sampling is not free."""


class Choice(NamedTuple):
    """How many of the best drafts to compute, and how many times the tokens per cost without are expected of it."""

    number: int
    speedup: float


@dataclasses.dataclass(frozen=True)
class StepCost:
    """The sizes that steps are padded to, and a step's cost by its size, in units of a reading of the weights.

    token_buckets, row_buckets: of tokens, and of rows to sample from, ascending.
    """

    token_buckets: Sequence[int]
    row_buckets: Sequence[int]

    @classmethod
    def of_engine(cls, config: EngineConfig) -> StepCost:
        """For the sizes of an engine."""
        return cls(buckets(config.step_budget), buckets(config.max_num_seqs))

    @staticmethod
    def of(bucket: int) -> float:
        """The cost of a step padded to ``bucket`` tokens."""
        return 1.0 + bucket / TOKENS_PER_WEIGHT_READ

    def room(self, num_tokens: int, num_rows: int, budget: int) -> list[tuple[int, float]]:
        """(drafts that fit, the step's cost) of each size that a step may be given: the one that it has without drafts,
        and where it computes no prompts, which would have to wait for them, the larger ones.

        num_tokens, num_rows: of the step without drafts. budget: the most tokens of a step.
        """
        pure = num_tokens == num_rows
        first = bisect.bisect_left(self.token_buckets, num_tokens)
        sizes = self.token_buckets[first:] if pure else self.token_buckets[first:first + 1]
        rows = self.row_buckets[-1 if pure else bisect.bisect_left(self.row_buckets, num_rows)]
        found: list[tuple[int, float]] = []
        for size in sizes:
            fit = min(size, budget) - num_tokens
            found.append((min(fit, rows - num_rows), self.of(size)))
            if fit >= rows - num_rows:
                break
        return found


def choose(gains: Sequence[float], num_rows: int, room: Sequence[tuple[int, float]]) -> Choice:
    """As many drafts that the most tokens are expected for their cost.

    gains: the tokens expected of each draft, best first. num_rows: the tokens that the step brings without.
    room: as of ``StepCost.room``.
    """
    gains = [gain for gain in gains if gain >= LEAST_GAIN]
    plain = num_rows / room[0][1]
    best, used, expected = Choice(0, 1.0), 0, float(num_rows)
    for fit, cost in room:
        fit = min(fit, len(gains))
        expected += sum(gains[used:fit])
        used = max(used, fit)
        if expected / cost > best.speedup * plain:
            best = Choice(used, expected / cost / plain)
    return best
