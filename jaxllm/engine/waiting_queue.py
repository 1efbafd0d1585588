"""``WaitingQueue``: sequences in scheduling order, at a cost per step that does not depend on how many wait."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from jaxllm.engine.request import Sequence


class WaitingQueue:
    """A heap of sequences by ``Sequence.order``: O(log n) to push and pop.

    A sequence that finishes while waiting (an abort) stays in the heap until it comes to the top or until such make up
    half of it, so that removal costs O(1) amortized; ``discard`` has to be told of it.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], Sequence]] = []
        self._num_finished = 0

    def __len__(self) -> int:
        return len(self._heap) - self._num_finished

    def __iter__(self) -> Iterator[Sequence]:
        """The waiting sequences, in no particular order."""
        return (sequence for _, sequence in self._heap if not sequence.finished)

    def push(self, sequence: Sequence) -> None:
        """Add a sequence that is not in the queue."""
        heapq.heappush(self._heap, (sequence.order, sequence))

    def peek(self) -> Sequence | None:
        """The sequence that goes first."""
        while self._heap and self._heap[0][1].finished:
            heapq.heappop(self._heap)
            self._num_finished -= 1
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        """Remove and return the sequence that ``peek`` returned."""
        return heapq.heappop(self._heap)[1]

    def discard(self, sequence: Sequence) -> None:
        """Remove a queued sequence whose status has just become FINISHED."""
        self._num_finished += 1
        if 2 * self._num_finished > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[1].finished]
            heapq.heapify(self._heap)
            self._num_finished = 0
