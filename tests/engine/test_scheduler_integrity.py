"""``check_integrity`` of the scheduler sees damage."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine.fake_engine import FakeEngine, Sizes
from engine.scheduled import prompt

from jaxllm.engine.integrity import IntegrityError
from jaxllm.engine.request import SequenceStatus
from jaxllm.engine.scheduler import Scheduler


def _lose_a_slot(scheduler: Scheduler) -> None:
    scheduler._running.free_slots.pop()


def _give_a_slot_twice(scheduler: Scheduler) -> None:
    scheduler._running.free_slots[0] = 0


def _run_out_of_order(scheduler: Scheduler) -> None:
    scheduler._running.sequences.reverse()


def _lose_a_waiting_sequence(scheduler: Scheduler) -> None:
    scheduler._waiting.pop()


def _queue_twice(scheduler: Scheduler) -> None:
    queued = scheduler._waiting.peek()
    assert queued is not None
    scheduler._waiting.push(queued)


def _forget_a_request(scheduler: Scheduler) -> None:
    del scheduler._requests["0"]


def _leak_blocks(scheduler: Scheduler) -> None:
    sequence = scheduler._running.sequences.pop()
    scheduler._running.free_slots.append(sequence.held_slot)
    del scheduler._requests[sequence.request.request_id]


def _finish_behind_its_back(scheduler: Scheduler) -> None:
    scheduler._running.sequences[0].status = SequenceStatus.FINISHED


_DAMAGES = [
    _lose_a_slot, _give_a_slot_twice, _run_out_of_order, _lose_a_waiting_sequence, _queue_twice, _forget_a_request,
    _leak_blocks, _finish_behind_its_back,
]  # fmt: skip


@pytest.mark.parametrize("damage", _DAMAGES)
def test_check_integrity_sees_damage(damage: Callable[[Scheduler], None]) -> None:
    engine = FakeEngine(Sizes(num_blocks=60, max_num_seqs=4, max_num_batched_tokens=6))
    for first in range(5):
        engine.request(prompt(3, first), ignore_eos=True)
    engine.step()
    assert engine.scheduler.num_running == 2
    assert engine.scheduler.num_waiting == 3
    damage(engine.scheduler)
    with pytest.raises(IntegrityError):
        engine.scheduler.check_integrity()
