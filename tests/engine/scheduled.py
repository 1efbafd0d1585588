"""What tests of the scheduler ask of its plans."""

from __future__ import annotations

from engine.fake_engine import EOS, FakeEngine

from jaxllm.engine.plan import StepPlan
from jaxllm.engine.request import Sequence


def prompt(length: int, first: int = 0) -> list[int]:
    return [(first + position * position) % EOS for position in range(length)]


def names(sequences: list[Sequence]) -> list[str]:
    return [f"{sequence.request.request_id}.{sequence.index}" for sequence in sequences]


def admitted(engine: FakeEngine) -> list[str]:
    """The sequences that the next step admits."""
    plan = engine.step()
    assert plan is not None
    return names(plan.admitted)


def rows(plan: StepPlan | None) -> dict[str, tuple[int, int]]:
    """For each row, where it starts and how many tokens it has."""
    assert plan is not None
    return dict(zip(names(plan.sequences), zip(plan.start.tolist(), plan.count.tolist(), strict=True), strict=True))
