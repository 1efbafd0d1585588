"""``Running``: the sequences that hold a slot, and with it blocks."""

from __future__ import annotations

import bisect
import heapq

from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.request import Sequence, SequenceStatus


class Running:
    """sequences: in scheduling order. free_slots: a heap, so that the lowest are given first."""

    def __init__(self, num_slots: int, blocks: BlockManager) -> None:
        self.sequences: list[Sequence] = []
        self.free_slots = list(range(num_slots))
        self._blocks = blocks

    @property
    def spare_blocks(self) -> int:
        """Free blocks besides one for each running sequence, which it may need within its next block of tokens."""
        return self._blocks.num_free_blocks - self._blocks.num_groups * len(self.sequences)

    @property
    def can_fork(self) -> bool:
        """Whether there is a slot for a fork, and blocks for its next tokens."""
        return bool(self.free_slots) and self.spare_blocks >= self._blocks.num_groups

    def enter(self, sequence: Sequence) -> None:
        """Give a sequence the lowest free slot."""
        sequence.slot = heapq.heappop(self.free_slots)
        sequence.status = SequenceStatus.RUNNING
        bisect.insort(self.sequences, sequence, key=_order)

    def leave(self, sequence: Sequence) -> None:
        """Take back a sequence's slot and blocks."""
        heapq.heappush(self.free_slots, sequence.held_slot)
        sequence.slot = None
        del self.sequences[bisect.bisect_left(self.sequences, sequence.order, key=_order)]
        self._blocks.release(sequence)


def _order(sequence: Sequence) -> tuple[int, int, int]:
    return sequence.order
