"""The invariants of a schedule: of slots, queues, requests and the blocks that they hold."""

from __future__ import annotations

from collections.abc import Iterable

from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.integrity import require
from jaxllm.engine.limits import SchedulerConfig
from jaxllm.engine.request import Request, Sequence, SequenceStatus
from jaxllm.engine.running import Running
from jaxllm.engine.waiting_queue import WaitingQueue

QUEUED = (SequenceStatus.WAITING, SequenceStatus.PREEMPTED)


def check_schedule(config: SchedulerConfig, requests: Iterable[Request], running: Running, queue: WaitingQueue,
                   blocks: BlockManager) -> None:
    """Raise ``IntegrityError`` unless everything holds together."""
    slots = [sequence.slot for sequence in running.sequences]
    all_slots = set(range(config.max_num_seqs))
    require(len(slots) + len(running.free_slots) == len(all_slots), "a slot was lost or given twice")
    require({*slots, *running.free_slots} == all_slots, "a slot was given twice")
    orders = [sequence.order for sequence in running.sequences]
    require(orders == sorted(set(orders)), "running sequences are not in order")
    waiting = list(queue)
    require(len(waiting) == len(set(waiting)) == len(queue), "the waiting queue miscounts")
    for sequence in running.sequences:
        require(sequence.status is SequenceStatus.RUNNING, "is among the running", sequence)
        idle = sequence.num_computed == sequence.target
        require(idle == has_row(sequence), "runs with nothing to compute, or computes what is known", sequence)
        require(sequence.num_computed <= sequence.target, "has computed too much", sequence)
        require(sequence.target <= config.max_model_len, "is too long", sequence)
    for sequence in waiting:
        require(sequence.status in QUEUED, "is in the queue", sequence)
        require(sequence.slot is None and sequence.num_computed == 0, "waits and holds something", sequence)
    known = {*running.sequences, *waiting}
    for request in requests:
        unfinished = [sample for sample in request.sequences if not sample.finished]
        require(bool(unfinished), "is finished and not removed", request)
        due = unfinished if request.forked else unfinished[:1]
        ending = [sample for sample in due if sample.status is SequenceStatus.ENDING]
        require(all(sample.slot is None and sample.num_pending <= 1 for sample in ending), "ends", ending)
        due = [sample for sample in due if sample not in ending]
        if request.beams is not None:
            request.beams.check_integrity()
            resting = [sample for sample in due if sample.status is SequenceStatus.RESTING]
            require(all(sample.slot is None and sample.num_computed == 0 for sample in resting), "rests", resting)
            due = [sample for sample in due if sample not in resting]
        require(known.issuperset(due), "a sample was lost", request)
        known.difference_update(due)
    require(not known, "belong to no request", known)
    require(blocks.holders() == set(running.sequences), "blocks are held by sequences that do not run")
    require(set(waiting).issuperset(blocks.swap.holders()), "host blocks are held by sequences not waiting")
    blocks.check_integrity()


def has_row(sequence: Sequence) -> bool:
    """Whether a beam waits for its fellows, with nothing to compute."""
    return sequence.request.beams is not None and sequence.request.beams.has_row(sequence)
