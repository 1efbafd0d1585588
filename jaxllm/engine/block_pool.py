"""``BlockPool``: which physical blocks are free, owned or remembered by content."""

from __future__ import annotations

from collections import Counter, OrderedDict

from jaxllm.engine.integrity import require
from jaxllm.errors import ParameterError

NULL_BLOCK = 0
"""Never given out: padding writes land there, and nothing reads it."""

BlockKey = tuple[int, bytes]
"""What a block holds: the group of layers it serves, and the hash of the prefix that it ends."""


class BlockPool:
    """Reference counts, content keys and the free list of all physical blocks.

    Every block but the null block is in one of three states:

    ======  ==========  =============================================================================
    blank   count == 0  holds nothing anyone could ask for; handed out first
    cached  count == 0  holds published content; can be acquired again until it is evicted, oldest first
    owned   count > 0   in the tables of so many sequences; published or not
    ======  ==========  =============================================================================

    Published blocks are immutable. At most one block is published under a key.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ParameterError("num_blocks", num_blocks, "an integer >= 2, since block 0 is the null block")
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._key_of: list[BlockKey | None] = [None] * num_blocks
        self._block_of: dict[BlockKey, int] = {}
        self._blank = list(range(num_blocks - 1, NULL_BLOCK, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated: blank and cached ones."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Free blocks whose content can still be found."""
        return len(self._cached)

    @property
    def num_owned(self) -> int:
        """Blocks in some sequence's table."""
        return self.num_blocks - 1 - self.num_free

    def references(self, block: int) -> int:
        """In how many tables the block is."""
        return self._references[block]

    def key(self, block: int) -> BlockKey | None:
        """What the block is published as."""
        return self._key_of[block]

    def find(self, key: BlockKey) -> int | None:
        """The block published under the key."""
        return self._block_of.get(key)

    def allocate(self) -> int:
        """Take a free block, evicting the least recently used cached one when none is blank."""
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._cached.popitem(last=False)
            self._unpublish(block)
        self._references[block] = 1
        return block

    def acquire(self, block: int) -> None:
        """Add an owner to a block that is owned or cached."""
        if self._references[block] == 0:
            del self._cached[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Remove an owner; the block is free once it has none."""
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._key_of[block] is None:
                self._blank.append(block)
            else:
                self._cached[block] = None

    def publish(self, block: int, key: BlockKey) -> None:
        """Let the block be found by what it holds. The first block of some content stays the one that is found."""
        if key not in self._block_of and self._key_of[block] is None:
            self._block_of[key] = block
            self._key_of[block] = key

    def forget(self) -> None:
        """Unpublish everything; cached blocks become blank."""
        for block in list(self._block_of.values()):
            self._unpublish(block)
        self._blank.extend(self._cached)
        self._cached.clear()

    def _unpublish(self, block: int) -> None:
        key = self._key_of[block]
        if key is not None:
            del self._block_of[key]
            self._key_of[block] = None

    def check_integrity(self, owners: Counter[int]) -> None:
        """Check every invariant against ``owners``, the number of tables that each block is in."""
        blank, cached = set(self._blank), set(self._cached)
        owned = {block for block, count in enumerate(self._references) if count > 0}
        require(len(blank) == len(self._blank), "a block is in the blank list twice")
        require(not blank & cached and not (blank | cached) & owned, "a block is in two states")
        require(blank | cached | owned == set(range(1, self.num_blocks)), "free + cached + owned is not the total")
        require(self._references[NULL_BLOCK] == 0 and NULL_BLOCK not in owners, "the null block was given out")
        require(self._key_of[NULL_BLOCK] is None, "the null block is published")
        for block in range(1, self.num_blocks):
            key = self._key_of[block]
            require(self._references[block] == owners[block], "references differ from owners", block)
            require(key is None or self._block_of.get(key) == block, "a block is not found under its key", block)
            require(block not in blank or key is None, "a blank block is published", block)
            require(block not in cached or key is not None, "a cached block is not published", block)
        published = sum(key is not None for key in self._key_of)
        require(published == len(self._block_of), "keys and published blocks differ in number")
