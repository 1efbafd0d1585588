"""``TableChanges``: what has changed in the block tables since the last step was planned."""

from __future__ import annotations

import numpy as np

from jaxllm.engine.block_pool import NULL_BLOCK


class TableChanges:
    """Entries of the tables that changed, and the copies of blocks that this needs, collected until ``take``."""

    def __init__(self) -> None:
        self._writes: list[tuple[int, int, int, list[int]]] = []
        self._copies: list[tuple[int, int]] = []
        self._forked = False

    def write(self, group: int, slot: int, column: int, blocks: list[int]) -> None:
        """A slot's table has these blocks from a column on."""
        self._writes.append((group, slot, column, blocks))

    def copy(self, source: int, copy: int) -> None:
        """A block's content is needed in another."""
        self._copies.append((source, copy))

    def replace_tables(self, slot: int, tables: list[list[int]], before: list[list[int]], forked: bool = False) -> None:
        """A slot has other tables than before, which may begin alike.

        forked: by a fork, perhaps between two steps: some of it may be replaced again before it is taken.
        """
        for group, (table, old) in enumerate(zip(tables, before, strict=True)):
            first = next((column for column, pair in enumerate(zip(table, old, strict=False)) if pair[0] != pair[1]),
                         min(len(table), len(old)))
            if first < len(table):
                self.write(group, slot, first, table[first:])
        self._forked |= forked

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """(table updates i32[k, 4], block copies i32[c, 2]) since the last call, as in ``StepPlan``."""
        lengths = [len(blocks) for *_, blocks in self._writes]
        updates = np.empty((sum(lengths), 4), np.int32)
        if self._writes:
            groups, slots, columns, runs = zip(*self._writes, strict=True)
            updates[:, 0] = np.repeat(groups, lengths)
            updates[:, 1] = np.repeat(slots, lengths)
            run_starts = np.cumsum(lengths) - lengths
            updates[:, 2] = np.arange(len(updates)) + np.repeat(np.asarray(columns) - run_starts, lengths)
            updates[:, 3] = [block for blocks in runs for block in blocks]
            if self._forked:
                # Who was forked between two steps, as beams are, may have got blocks of its own since.
                updates = _last_of_each_place(updates)
            # Where a window no longer sees, nobody reads the table.
            updates = updates[updates[:, 3] != NULL_BLOCK]
        copies = np.asarray(self._copies, np.int32).reshape(-1, 2)
        self._writes, self._copies, self._forked = [], [], False
        return updates, copies


def _last_of_each_place(updates: np.ndarray) -> np.ndarray:
    """Table updates without those that a later one of the same (group, slot, column) undoes."""
    last = {place: line for line, place in enumerate(map(tuple, updates[:, :3].tolist()))}
    return updates[sorted(last.values())]
