"""``SwapSpace``: which host blocks keep what preempted sequences have computed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from jaxllm.engine.block_pool import NULL_BLOCK, BlockKey
from jaxllm.engine.integrity import require
from jaxllm.engine.request import Sequence
from jaxllm.errors import ParameterError

NO_BLOCK = -1
"""In place of a host block, where a window no longer sees."""


@dataclasses.dataclass(frozen=True, slots=True)
class SwappedCopy:
    """What the tokens from ``num_computed`` on see: for each group, the host blocks in order, or ``NO_BLOCK``."""

    num_computed: int
    tables: list[list[int]]


class SwapSpace:
    """The free list, owners and contents of the host blocks, each as large as a device block.

    A sequence's copy is kept whole or not at all. A host block is written once, by the plan of the preemption, and then
    only read; one that holds published content serves all sequences that need that content. The moves between device
    and host are collected until ``take_moves``; a block that is read by a plan is not given out before the next one.
    """

    def __init__(self, num_blocks: int = 0) -> None:
        if num_blocks < 0:
            raise ParameterError("num_swap_blocks", num_blocks, "an integer >= 0")
        self.num_blocks = num_blocks
        self.clear()

    def clear(self) -> None:
        """Forget every copy and move, whatever state an interrupted call has left."""
        self._free = list(range(self.num_blocks - 1, -1, -1))
        self._leaving: list[int] = []
        self._references = [0] * self.num_blocks
        self._key_of: dict[int, BlockKey] = {}
        self._block_of: dict[BlockKey, int] = {}
        self._copies: dict[Sequence, SwappedCopy] = {}
        self._out: list[tuple[int, int]] = []
        self._in: list[tuple[int, int]] = []

    @property
    def num_used(self) -> int:
        """Host blocks in some sequence's copy."""
        return self.num_blocks - len(self._free) - len(self._leaving)

    def holders(self) -> dict[Sequence, SwappedCopy]:
        """The sequences of which there is a copy."""
        return dict(self._copies)

    def keep(self, sequence: Sequence, num_computed: int, tables: list[list[int]],
             key_of: Callable[[int], BlockKey | None]) -> bool:
        """Copy a sequence's device blocks out, those with known content unless it is here already.

        tables: for each group, the blocks that hold ``num_computed`` tokens, or the null block where a window no longer
        sees. key_of: what a block is published as.
        False, and nothing changed, when there is nothing to keep or free host blocks do not suffice.
        """
        missing = sum(key_of(block) not in self._block_of for table in tables for block in table
                      if block != NULL_BLOCK)
        if num_computed == 0 or missing > len(self._free):
            return False
        kept = [[NO_BLOCK if block == NULL_BLOCK else self._hold(block, key_of(block)) for block in table]
                for table in tables]
        self._copies[sequence] = SwappedCopy(num_computed, kept)
        return True

    def take(self, sequence: Sequence) -> SwappedCopy | None:
        """Give up a sequence's copy, if there is one, for this step to read."""
        copy = self._copies.pop(sequence, None)
        if copy is not None:
            self._leaving += self._release(copy)
        return copy

    def load(self, moves: Iterable[tuple[int, int]]) -> None:
        """Copy back in: (host block, device block) each, of copies taken in this step."""
        self._in.extend(moves)

    def discard(self, sequence: Sequence) -> None:
        """Give up a sequence's copy, if there is one, unread."""
        copy = self._copies.pop(sequence, None)
        if copy is None:
            return
        freed = self._release(copy)
        self._free += freed
        if self._out:
            unwanted = set(freed)
            self._out = [move for move in self._out if move[1] not in unwanted]

    def discard_all(self) -> None:
        """Give up all copies: what they hold is out of date."""
        for sequence in list(self._copies):
            self.discard(sequence)

    def invalidate(self, blocks: Iterable[int]) -> None:
        """Give up the copies that lie in any of these host blocks, which a failed plan may not have written."""
        lost = set(blocks)
        if lost:
            for sequence, copy in list(self._copies.items()):
                if any(not lost.isdisjoint(table) for table in copy.tables):
                    self.discard(sequence)

    def take_moves(self) -> tuple[np.ndarray, np.ndarray]:
        """(``swap_out``, ``swap_in``) since the last call, as in ``StepPlan``."""
        moves = [np.asarray(each, np.int32).reshape(-1, 2) for each in (self._out, self._in)]
        self._out, self._in = [], []
        self._free += self._leaving
        self._leaving = []
        return moves[0], moves[1]

    def _hold(self, device_block: int, key: BlockKey | None) -> int:
        block = None if key is None else self._block_of.get(key)
        if block is None:
            block = self._free.pop()
            self._out.append((device_block, block))
            if key is not None:
                self._block_of[key], self._key_of[block] = block, key
        self._references[block] += 1
        return block

    def _release(self, copy: SwappedCopy) -> list[int]:
        """Remove an owner of each block of a copy; the blocks that have none left."""
        freed = []
        for table in copy.tables:
            for block in _held(table):
                self._references[block] -= 1
                if self._references[block] == 0:
                    freed.append(block)
                    key = self._key_of.pop(block, None)
                    if key is not None:
                        del self._block_of[key]
        return freed

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless every invariant holds."""
        owners: Counter[int] = Counter()
        for sequence, copy in self._copies.items():
            require(0 < copy.num_computed < sequence.target, "more is kept in host memory than it has", sequence)
            require(len({len(table) for table in copy.tables}) == 1, "uneven tables in host memory", sequence)
            for table in copy.tables:
                held = _held(table)
                require(len(set(held)) == len(held), "a host block occurs twice in its copy", sequence)
                owners.update(held)
        used = {block for block, count in enumerate(self._references) if count > 0}
        unused = [*self._free, *self._leaving]
        require(len(set(unused)) == len(unused), "a host block is free twice")
        require(used.isdisjoint(unused), "a host block is free and used")
        require(used.union(unused) == set(range(self.num_blocks)), "free + used host blocks is not the total")
        for block in used:
            require(self._references[block] == owners[block], "references differ from owners", block)
        require(self._key_of == {block: key for key, block in self._block_of.items()}, "host block keys differ")
        require(used.issuperset(self._key_of), "a free host block has a key")
        require(used.issuperset(block for _, block in self._out), "a free host block is to be written")


def _held(table: list[int]) -> list[int]:
    return [block for block in table if block != NO_BLOCK]
