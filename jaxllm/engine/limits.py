"""``SchedulerConfig``: what bounds a step."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from jaxllm.errors import ParameterError

Policy = Literal["fcfs", "priority"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The limits of a step and the order in which sequences get their share.

    max_num_seqs: sequences that run at once, each in a slot of its own.
    max_num_batched_tokens: the token budget of a step.
    max_model_len: the most tokens of a sequence, prompt and output.
    policy: "fcfs" goes by arrival, "priority" by ``SamplingParams.priority``, smaller first, then by arrival.
    num_stages: of the pipeline that runs the steps. So many steps are on their way at once, and share the budget.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: Policy = "fcfs"
    num_stages: int = 1

    def __post_init__(self) -> None:
        for name, low in (("max_num_seqs", 1), ("max_num_batched_tokens", 1), ("max_model_len", 2), ("num_stages", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ParameterError(name, value, f"an integer >= {low}")
        if self.policy not in get_args(Policy):
            raise ParameterError("policy", self.policy, "one of " + ", ".join(map(repr, get_args(Policy))))

    @property
    def step_budget(self) -> int:
        """The most tokens of one step."""
        return -(-self.max_num_batched_tokens // self.num_stages)
