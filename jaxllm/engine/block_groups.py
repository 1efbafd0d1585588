"""``BlockGroups``: which blocks the groups of layers need, full attention all, windows the last ones."""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable

from jaxllm.errors import ParameterError


@dataclasses.dataclass(frozen=True)
class BlockGroups:
    """Groups of layers with tables of their own. A column of a table is a block of ``block_size`` tokens.

    windows: for each group how many keys a query sees, itself included; ``None`` for all.

    A sequence that has computed ``c`` tokens needs the columns that tokens from ``c`` on see: of a group with window
    ``w`` those from position ``c - w + 1`` on. It keeps what tokens from the beginning of ``c``'s block on see: from
    there others can go on, who find the full blocks before.
    """

    windows: tuple[int | None, ...]
    block_size: int

    def __post_init__(self) -> None:
        if isinstance(self.block_size, bool) or not isinstance(self.block_size, int) or self.block_size < 1:
            raise ParameterError("block_size", self.block_size, "an integer >= 1")
        if not self.windows or any(window is not None and window < 1 for window in self.windows):
            raise ParameterError("windows", self.windows, "for each group, of which there is one at least, an integer "
                                 ">= 1 or None")

    def __len__(self) -> int:
        return len(self.windows)

    @functools.cached_property
    def windowed(self) -> tuple[int, ...]:
        """The groups that have a window."""
        return tuple(group for group, window in enumerate(self.windows) if window is not None)

    def columns(self, num_tokens: int) -> int:
        """Columns of so many tokens."""
        return -(-num_tokens // self.block_size)

    def first_column(self, group: int, num_computed: int) -> int:
        """The first column that is kept."""
        window, block = self.windows[group], num_computed // self.block_size
        return 0 if window is None else max(block * self.block_size - window + 1, 0) // self.block_size

    def most_columns(self, group: int, num_tokens: int) -> int:
        """The most columns held at once on the way to so many tokens, when they are computed one by one.

        Those of the last block and of the ``w - 1`` positions before it.
        """
        columns, window = self.columns(num_tokens), self.windows[group]
        return columns if window is None else min(columns, (window - 2) // self.block_size + 2)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many tokens take, over all groups, when they are computed one by one."""
        return sum(self.most_columns(group, num_tokens) for group in range(len(self)))

    def longest(self, num_blocks: int, limit: int) -> int:
        """The most tokens, up to ``limit``, that so many blocks hold."""
        lengths = range(self.block_size, limit + self.block_size, self.block_size)
        return min(bisect.bisect_right(lengths, num_blocks, key=self.blocks_for) * self.block_size, limit)

    def longest_prefix(self, num_columns: int, has: Callable[[int, int], bool]) -> int:
        """The largest number of columns, up to ``num_columns``, to go on from.

        has: whether a (group, column) is there. Full attention needs all columns before, a window those that it sees.
        """
        full = [group for group, window in enumerate(self.windows) if window is None]
        found = next((column for column in range(num_columns) for group in full if not has(group, column)), num_columns)
        while found:
            # Each column that is missing is needed by all prefixes from its end to this one's.
            missing = [column for group in self.windowed
                       for column in range(self.first_column(group, found * self.block_size), found)
                       if not has(group, column)]
            if not missing:
                break
            found = min(missing)
        return found
