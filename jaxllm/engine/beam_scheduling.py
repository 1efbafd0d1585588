"""``BeamScheduling``: how the beams of searches get and give up their places among the running."""

from __future__ import annotations

from jaxllm.engine.beam_group import Succession
from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.request import Sequence, SequenceStatus
from jaxllm.engine.running import Running
from jaxllm.engine.schedule_integrity import has_row
from jaxllm.engine.waiting_queue import WaitingQueue


class BeamScheduling:
    """The scheduler's part that concerns beams only.

    A beam that has its next-token row and waits for its fellows' is given no tokens, and none is appended to any but by
    ``continue_beams``. A beam that loses its place then is not queued: what goes on from it is computed anew.

    forked: beams that were given blocks since the last plan, which the next one has to name.
    """

    def __init__(self, running: Running, waiting: WaitingQueue, blocks: BlockManager) -> None:
        self._running = running
        self._waiting = waiting
        self._blocks = blocks
        self.forked: list[Sequence] = []

    def continue_beams(self, succession: Succession) -> None:
        """Let the sequences of a search go on as a selection says."""
        for sequence in succession.resting:
            self.rest(sequence)
        for parent, child, token in succession.forks:
            child.take_tokens(parent)
            self._fork(parent, child)
            child.append(token)
        for sequence, token in succession.extended:
            sequence.append(token)
            if sequence.status is SequenceStatus.RESTING:
                self._wait(sequence)

    def rest(self, sequence: Sequence) -> None:
        """Take from a beam what it holds."""
        if sequence.status is SequenceStatus.RUNNING:
            self._running.leave(sequence)
        sequence.status = SequenceStatus.RESTING
        sequence.num_computed = 0

    def last_with_row(self) -> Sequence | None:
        """The running beam, last in order, that waits for its fellows."""
        return next((sequence for sequence in reversed(self._running.sequences) if has_row(sequence)), None)

    def _fork(self, parent: Sequence, child: Sequence) -> None:
        running = parent.status is SequenceStatus.RUNNING
        if running and child.status is not SequenceStatus.RUNNING and self._running.can_fork:
            self._running.enter(child)
        if running and child.status is SequenceStatus.RUNNING:
            self._blocks.fork(parent, child)
            self.forked.append(child)
        else:
            self.rest(child)
            child.hash_chain = parent.hash_chain.copy() if parent.hash_chain is not None else None
            self._wait(child)

    def _wait(self, sequence: Sequence) -> None:
        sequence.status = SequenceStatus.WAITING
        self._waiting.push(sequence)
