"""``JointPlan``: one step of several replicas that compute together."""

from __future__ import annotations

import dataclasses

from jaxllm.engine.plan import StepPlan
from jaxllm.engine.request import Sequence


@dataclasses.dataclass(frozen=True, eq=False)
class JointPlan:
    """The plan of each replica, ``None`` of one that has nothing to do; of one at least there is a plan."""

    plans: list[StepPlan | None]

    @property
    def sequences(self) -> list[Sequence]:
        """All that the step computes tokens of."""
        return [sequence for plan in self.plans if plan is not None for sequence in plan.sequences]
