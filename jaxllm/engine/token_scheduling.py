"""``TokenScheduling``: which sequences a step's tokens go to, and who gains or loses a place for it."""

from __future__ import annotations

from jaxllm.engine.beam_scheduling import BeamScheduling
from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.integrity import IntegrityError
from jaxllm.engine.plan import StepDraft
from jaxllm.engine.request import Sequence, SequenceStatus
from jaxllm.engine.running import Running
from jaxllm.engine.schedule_integrity import has_row
from jaxllm.engine.waiting_queue import WaitingQueue


class TokenScheduling:
    """The scheduler's part that gives out a step's budget of tokens, by the rules that ``Scheduler`` states."""

    def __init__(self, running: Running, waiting: WaitingQueue, beams: BeamScheduling, blocks: BlockManager,
                 num_stages: int = 1) -> None:
        self._running = running
        self._waiting = waiting
        self._beams = beams
        self._blocks = blocks
        self._num_stages = num_stages

    def fill(self, step: StepDraft) -> None:
        """Give tokens to those who can advance, as far as the budget goes."""
        self._schedule_running(step)
        for sequence in [sequence for sequence in step.counts if not sequence.request.forked]:
            self._fork_samples(sequence, step)
        if not step.preempted:
            self._admit_waiting(step)
        while not step.counts and self._rest_last_beam(step):
            self._schedule_running(step)
            if not step.counts:
                self._admit_waiting(step)

    def _schedule_running(self, step: StepDraft) -> None:
        turns = -(-len(self._running.sequences) // self._num_stages)
        for sequence in self._running.sequences:  # which lose their last one when it is preempted
            if step.budget == 0:
                return
            if (sequence.num_pending and self._must_wait(sequence, step)) or has_row(sequence):
                continue
            end = sequence.num_tokens + sequence.num_pending
            if end == sequence.num_computed + 1:
                if turns == 0:
                    continue
                turns -= 1
            if end - sequence.num_computed > step.budget:
                end = sequence.num_computed + step.budget
            if end > sequence.num_writable:
                end = self._blocks.reach(sequence, end)
                if not self._make_room(sequence, end, step):
                    return
            step.give(sequence, end - sequence.num_computed)

    def _must_wait(self, sequence: Sequence, step: StepDraft) -> bool:
        """Whether the step cannot have a sequence's pending token, which the host or the device has to know."""
        return sequence.must_wait or step.number - sequence.newest_plan < self._num_stages

    def _make_room(self, sequence: Sequence, end: int, step: StepDraft) -> bool:
        """Have blocks for a sequence's tokens up to ``end``, those of others if need be; whether it has them."""
        while not self._blocks.grow(sequence, end):
            victim = self._running.sequences[-1]
            if victim is sequence or (victim.num_pending and victim.request.beams is not None):
                return False
            step.preempted.append(self._preempt(victim))
        return True

    def _rest_last_beam(self, step: StepDraft) -> bool:
        """Take slot and blocks from the last in order that waits for its fellow beams; whether there was one.

        Not while tokens are pending: more can advance when they are known.
        """
        if any(sequence.num_pending for sequence in self._running.sequences):
            return False
        victim = self._beams.last_with_row()
        if victim is not None:
            step.preempted.append(self._preempt(victim))
        return victim is not None

    def _admit_waiting(self, step: StepDraft) -> None:
        while step.budget > 0 and self._running.free_slots and (sequence := self._waiting.peek()) is not None:
            if sequence.num_pending:
                return
            prefix = self._blocks.find_prefix(sequence)
            if self._blocks.free_blocks_to_admit(prefix, sequence.num_tokens) > self._running.spare_blocks:
                return
            self._waiting.pop()
            self._running.enter(sequence)
            step.admitted.append(sequence)
            self._blocks.admit(sequence, prefix)
            end = self._blocks.reach(sequence, min(sequence.num_tokens, sequence.num_computed + step.budget))
            if not self._blocks.grow(sequence, end):
                raise IntegrityError(f"{sequence} was admitted without blocks")
            step.give(sequence, end - sequence.num_computed)
            self._fork_samples(sequence, step)

    def _fork_samples(self, parent: Sequence, step: StepDraft) -> None:
        request = parent.request
        if parent.index != 0 or request.forked or parent.num_computed + step.counts[parent] < parent.num_tokens:
            return
        request.forked = True
        samples = [sample for sample in request.sequences[1:] if not sample.finished]
        while samples and self._running.can_fork:
            sample = samples.pop(0)
            self._running.enter(sample)
            step.admitted.append(sample)
            self._blocks.fork(parent, sample)
            step.forks.append((parent, sample))
        for sample in samples:
            self._waiting.push(sample)

    def _preempt(self, victim: Sequence) -> Sequence:
        victim.num_preemptions += 1
        victim.request.metrics.num_preemptions += 1
        if has_row(victim):
            self._beams.rest(victim)
            return victim
        self._blocks.swap_out(victim)
        self._running.leave(victim)
        victim.status = SequenceStatus.PREEMPTED
        victim.num_computed = 0
        self._waiting.push(victim)
        return victim
