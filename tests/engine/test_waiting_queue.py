from __future__ import annotations

import random

from jaxllm.engine.request import Request, Sequence, SequenceStatus
from jaxllm.engine.waiting_queue import WaitingQueue
from jaxllm.sampling_params import SamplingParams


def _sequence(rank: int, arrival: int) -> Sequence:
    (sequence,) = Request("r", [0], SamplingParams(), max_model_len=4).sequences
    sequence.order = (rank, arrival, 0)
    return sequence


def _finish(queue: WaitingQueue, sequence: Sequence) -> None:
    sequence.status = SequenceStatus.FINISHED
    queue.discard(sequence)


def test_sequences_come_out_in_order_without_those_that_finished() -> None:
    rng = random.Random(0)
    queue, sequences = WaitingQueue(), [_sequence(rank, arrival) for rank in (2, 0, 1) for arrival in range(200)]
    for sequence in rng.sample(sequences, len(sequences)):
        queue.push(sequence)
    gone = rng.sample(sequences, 400)
    for sequence in gone:
        _finish(queue, sequence)
    left = sorted((s for s in sequences if s not in gone), key=lambda sequence: sequence.order)
    assert len(queue) == len(left) == len(list(queue))
    assert set(queue) == set(left)
    popped = []
    while (first := queue.peek()) is not None:
        assert queue.pop() is first
        popped.append(first)
    assert popped == left
    assert len(queue) == 0


def test_aborted_sequences_do_not_pile_up_in_memory() -> None:
    queue = WaitingQueue()
    stays = _sequence(0, 0)
    queue.push(stays)
    for arrival in range(1, 1000):
        sequence = _sequence(0, arrival)
        queue.push(sequence)
        _finish(queue, sequence)
    assert len(queue) == 1
    assert len(queue._heap) <= 3
    assert queue.peek() is stays
