"""What makes one ``StepLoop`` run several replicas, which take every step together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxllm.engine.collector import Collector
from jaxllm.engine.joint_plan import JointPlan
from jaxllm.engine.outcomes import Outcomes
from jaxllm.engine.request import Request
from jaxllm.engine.scheduler import Scheduler
from jaxllm.outputs import FinishReason


class LockstepScheduler:
    """The schedulers of replicas as one: each plans its own part of a step."""

    def __init__(self, schedulers: Sequence[Scheduler]) -> None:
        self._schedulers = schedulers

    def schedule(self) -> JointPlan | None:
        """A plan of each replica's; ``None`` when there is nothing that any could compute."""
        plans = [scheduler.schedule() for scheduler in self._schedulers]
        return None if all(plan is None for plan in plans) else JointPlan(plans)

    def drop(self, plan: JointPlan) -> list[Request]:
        """As ``Scheduler.drop``, in every replica."""
        return [request for scheduler, each in zip(self._schedulers, plan.plans, strict=True) if each is not None
                for request in scheduler.drop(each)]

    def reset(self, reason: FinishReason = "abort") -> list[Request]:
        """As ``Scheduler.reset``, of every replica."""
        return [request for scheduler in self._schedulers for request in scheduler.reset(reason)]


class LockstepOutcomes:
    """The outcomes of replicas as one."""

    def __init__(self, outcomes: Sequence[Outcomes]) -> None:
        self._outcomes = outcomes

    def scheduled(self, plan: JointPlan) -> None:
        """Note that a step begins, in each replica that takes part with tokens."""
        for outcomes, each in zip(self._outcomes, plan.plans, strict=True):
            if each is not None:
                outcomes.scheduled(each)

    def take(self, plan: JointPlan, result: Any) -> list[Collector]:
        """Hand out what each replica's part gave. result: a ``runner.lockstep.JointResult``."""
        return [collector for outcomes, each, part in zip(self._outcomes, plan.plans, result.results, strict=True)
                if each is not None for collector in outcomes.take(each, part)]

    def fail(self, requests: Iterable[Request], error: BaseException) -> list[Collector]:
        """End requests that the schedulers have dropped, with an error."""
        requests = list(requests)
        return [collector for outcomes in self._outcomes for collector in outcomes.fail(
            [request for request in requests if request.request_id in outcomes], error)]
