"""``BlockStats``: how a pool of blocks is used."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True, slots=True)
class BlockStats:
    """How the pool is used: ``total = free + cached + used`` blocks; slots are of used blocks.

    slots_filled: slots that hold the keys and values of a token, those shared by several sequences counted once.
    prefix_queries, prefix_hits: tokens looked up in the prefix cache, and found, at each sequence's first admission.
    """

    total_blocks: int
    free_blocks: int
    cached_blocks: int
    used_blocks: int
    slots_allocated: int
    slots_filled: int
    prefix_queries: int
    prefix_hits: int

    @classmethod
    def total(cls, pools: Iterable[BlockStats]) -> BlockStats:
        """Those of several pools, added up."""
        return cls(*map(sum, zip(*map(dataclasses.astuple, pools), strict=True)))

    @property
    def kv_waste(self) -> float:
        """The fraction of allocated slots that hold nothing."""
        return 1.0 - self.slots_filled / self.slots_allocated if self.slots_allocated else 0.0

    @property
    def hit_rate(self) -> float:
        """The fraction of tokens looked up that were found."""
        return self.prefix_hits / self.prefix_queries if self.prefix_queries else 0.0
