"""``BlockManager``: which physical blocks hold the keys and values of which sequence."""

from __future__ import annotations

import dataclasses

from jaxllm.engine.block_groups import BlockGroups
from jaxllm.engine.block_integrity import check_blocks
from jaxllm.engine.block_pool import NULL_BLOCK, BlockPool
from jaxllm.engine.block_stats import BlockStats
from jaxllm.engine.prefix_hash import HashChain, PrefixIdentity
from jaxllm.engine.request import Sequence
from jaxllm.engine.swap import SwappedCopy, SwapSpace
from jaxllm.engine.table_changes import TableChanges

PrefixBlocks = list[list[int]]
"""For each group, the blocks of a prefix, in order; the null block where a window no longer sees."""


@dataclasses.dataclass(slots=True)
class Holding:
    """The blocks of one admitted sequence: a table per group, and how many of its columns are published.

    tables: all of one length, with the null block where a window no longer sees. firsts: for each, the columns before
    this one are given back. generation: of the prefix cache, when the sequence was admitted; its oldest content dates
    from then.
    """

    tables: list[list[int]]
    firsts: list[int]
    num_published: int
    generation: int


class BlockManager:
    """Block tables of the running sequences, fed by one pool, with a prefix cache.

    One block holds ``block_size`` tokens of one group of layers (``BlockGroups``); tables have equally many columns.
    What a step has to be told of them is collected in ``changes``.

    - Admission takes the longest published prefix, at most all tokens but the last, which has to be computed to sample.
    - A block is published once it is full and computed, and never written to after.
    - What a group's window has left behind is given back (``trim``); it can be found until it is evicted.
    - Forks share all blocks; who writes to a shared block first gets a copy.
    - What a preempted sequence has computed can be kept in ``swap``, until it is admitted again or the prefix cache is
      reset. What the prefix cache still holds by then is not copied back. What dates from before a reset is not kept.
    """

    def __init__(
        self, num_blocks: int, block_size: int, windows: tuple[int | None, ...] = (None,),
        enable_prefix_caching: bool = True, num_swap_blocks: int = 0,
    ) -> None:
        self.groups = BlockGroups(windows, block_size)
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_groups = len(windows)
        self.enable_prefix_caching = enable_prefix_caching
        self.swap = SwapSpace(num_swap_blocks)
        self.weight_version = 0
        self._generation = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self.clear()

    def clear(self) -> None:
        """Forget every sequence and all content, whatever state an interrupted call has left."""
        self._pool = BlockPool(self.num_blocks)
        self.swap.clear()
        self._holdings: dict[Sequence, Holding] = {}
        self.changes = TableChanges()
        self._generation += 1

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be given out, cached ones included."""
        return self._pool.num_free

    def tables(self, sequence: Sequence) -> tuple[tuple[int, ...], ...]:
        """The sequence's blocks, for each group."""
        return tuple(tuple(table) for table in self._holdings[sequence].tables)

    def num_held_slots(self, sequence: Sequence) -> int:
        """How many tokens the sequence's blocks have room for."""
        return len(self._holdings[sequence].tables[0]) * self.block_size

    def holders(self) -> set[Sequence]:
        """The sequences that hold blocks."""
        return set(self._holdings)

    def find_prefix(self, sequence: Sequence) -> PrefixBlocks:
        """The longest published prefix of the sequence's tokens. Changes nothing."""
        if not self.enable_prefix_caching or sequence.num_reusable < self.block_size:
            return [[] for _ in range(self.num_groups)]
        chain, find = self._chain_of(sequence), self._pool.find
        chain.extend(sequence.token_ids)
        hashes = chain.hashes[: sequence.num_reusable // self.block_size]
        columns = self.groups.longest_prefix(len(hashes), lambda group, column: bool(find((group, hashes[column]))))
        firsts = self._firsts(columns * self.block_size)
        return [[NULL_BLOCK if column < first else find((group, hashes[column])) or NULL_BLOCK
                 for column in range(columns)] for group, first in enumerate(firsts)]

    def free_blocks_to_admit(self, prefix: PrefixBlocks, num_tokens: int) -> int:
        """How many free blocks it takes to hold ``num_tokens`` of a sequence whose prefix was found."""
        needed = 0
        for group, table in enumerate(prefix):
            unowned = sum(block != NULL_BLOCK and self._pool.references(block) == 0 for block in table)
            # Of those that become its own, a window never sees more at once.
            needed += min(unowned + self.groups.columns(num_tokens) - len(table),
                          self.groups.most_columns(group, num_tokens))
        return needed

    def admit(self, sequence: Sequence, prefix: PrefixBlocks) -> None:
        """Start the sequence's tables, in its slot, with the blocks of its prefix, which count as computed.

        Blocks that are kept in host memory follow, as far as they go beyond the prefix.
        """
        for table in prefix:
            for block in filter(None, table):
                self._pool.acquire(block)
        columns = len(prefix[0])
        self._holdings[sequence] = Holding(prefix, self._firsts(columns * self.block_size), columns, self._generation)
        self.changes.replace_tables(sequence.held_slot, prefix, [[] for _ in prefix])
        sequence.num_computed = columns * self.block_size
        if sequence.num_preemptions == sequence.num_output == 0:
            sequence.num_cached_tokens = sequence.num_computed
            if self.enable_prefix_caching and (sequence.num_reusable or not sequence.wants_prompt_logprobs):
                self._prefix_queries += sequence.num_tokens
                self._prefix_hits += sequence.num_computed
        kept = self.swap.take(sequence)
        if kept is not None and kept.num_computed > sequence.num_computed:
            self._swap_in(sequence, kept)

    def _swap_in(self, sequence: Sequence, kept: SwappedCopy) -> None:
        slot, holding = sequence.held_slot, self._holdings[sequence]
        sequence.num_computed = kept.num_computed
        self.trim(sequence)
        for group, (table, host_blocks) in enumerate(zip(holding.tables, kept.tables, strict=True)):
            first = max(len(table), holding.firsts[group])
            fresh = [self._pool.allocate() for _ in host_blocks[first:]]
            table.extend([NULL_BLOCK] * (first - len(table)) + fresh)
            self.changes.write(group, slot, first, fresh)
            self.swap.load(zip(host_blocks[first:], fresh, strict=True))

    def swap_out(self, sequence: Sequence) -> bool:
        """Keep in host memory what a sequence has computed, before it is released; false if it cannot be kept."""
        holding = self._holdings[sequence]
        if holding.generation != self._generation:
            return False
        self.trim(sequence)
        columns = self.groups.columns(sequence.num_computed)
        tables = [table[:columns] for table in holding.tables]
        return self.swap.keep(sequence, sequence.num_computed, tables, self._pool.key)

    def grow(self, sequence: Sequence, end: int) -> bool:
        """Make the slots of tokens ``num_computed .. end - 1`` the sequence's own to write.

        Adds blocks, and replaces shared ones by copies. False, and nothing changed, when free blocks do not suffice.
        There is nothing to do up to ``sequence.num_writable``.
        """
        slot, tables = sequence.held_slot, self._holdings[sequence].tables
        have, want = len(tables[0]), self.groups.columns(end)
        shared = self._shared(sequence)
        if len(shared) + self.num_groups * (want - have) > self._pool.num_free:
            return False
        for group, column in shared:
            source, copy = tables[group][column], self._pool.allocate()
            self._pool.release(source)
            tables[group][column] = copy
            self.changes.copy(source, copy)
            self.changes.write(group, slot, column, [copy])
        if want > have:
            for group, table in enumerate(tables):
                fresh = [self._pool.allocate() for _ in range(want - have)]
                table.extend(fresh)
                self.changes.write(group, slot, have, fresh)
        sequence.num_writable = max(have, want) * self.block_size
        return True

    def reach(self, sequence: Sequence, end: int) -> int:
        """The most tokens up to ``end`` to compute next, at least one, where windows are short of blocks.

        Most of the blocks that a chunk of a prompt takes are given back when it is computed. It is made smaller rather
        than take them from others.
        """
        if not self.groups.windowed:
            return end
        spare = max(self._pool.num_free - len(self._shared(sequence)), 0) // self.num_groups
        held = self.num_held_slots(sequence) + spare * self.block_size
        return max(min(end, held), sequence.num_computed + 1)

    def trim(self, sequence: Sequence) -> None:
        """Give back the blocks that nothing needs to go on (``BlockGroups``), the oldest first.

        Steps that are planned may read them yet: the device runs what is planned after them later.
        """
        holding = self._holdings[sequence]
        for group in self.groups.windowed:
            table, first = holding.tables[group], holding.firsts[group]
            wanted = self.groups.first_column(group, sequence.num_computed)
            if wanted > first:
                for column, block in enumerate(table[first:wanted], first):
                    if block != NULL_BLOCK:
                        self._pool.release(block)
                        table[column] = NULL_BLOCK
                holding.firsts[group] = wanted

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Start the child's tables, in its slot, with all of the parent's blocks; it gives back those it had."""
        holding = self._holdings[parent]
        tables = [table.copy() for table in holding.tables]
        for table in tables:
            for block in filter(None, table):
                self._pool.acquire(block)
        before: list[list[int]] = [[] for _ in tables]
        if child in self._holdings:
            before = self._holdings[child].tables
            self.release(child)
        self._holdings[child] = Holding(
            tables, holding.firsts.copy(), holding.num_published, holding.generation)
        self.changes.replace_tables(child.held_slot, tables, before, forked=True)
        parent.num_writable = child.num_writable = 0
        child.num_computed = parent.num_computed
        if child.num_output == 0:
            child.num_cached_tokens = parent.num_cached_tokens
        child.hash_chain = parent.hash_chain.copy() if parent.hash_chain is not None else None

    def publish(self, sequence: Sequence, end: int) -> None:
        """Let others find the blocks that are full with the sequence's first ``end`` tokens, known and computed."""
        holding = self._holdings[sequence]
        full = end // self.block_size
        if full <= holding.num_published or not self.enable_prefix_caching:
            return
        if holding.generation != self._generation:
            # Some of its keys and values date from before the reset.
            return
        chain = self._chain_of(sequence)
        chain.extend(sequence.token_ids[: full * self.block_size])
        for group, table in enumerate(holding.tables):
            for column in range(max(holding.num_published, holding.firsts[group]), full):
                self._pool.publish(table[column], (group, chain.hashes[column]))
        holding.num_published = full

    def release(self, sequence: Sequence) -> None:
        """Give back all of the sequence's blocks, the tail first: it is evicted before the head, which others share."""
        holding = self._holdings.pop(sequence)
        sequence.num_writable = 0
        for column in reversed(range(len(holding.tables[0]))):
            for table in holding.tables:
                if table[column] != NULL_BLOCK:
                    self._pool.release(table[column])

    def reset_prefix_cache(self) -> None:
        """Forget all published content, and what is in host memory.

        Running sequences go on with their blocks, but publish no more.
        """
        self._pool.forget()
        self.swap.discard_all()
        self._generation += 1
        self._prefix_queries = self._prefix_hits = 0

    def bump_weight_version(self) -> None:
        """The weights have changed: nothing computed before is found again."""
        self.weight_version += 1
        self.reset_prefix_cache()

    def stats(self) -> BlockStats:
        """How the pool is used now, in time proportional to the number of running sequences."""
        # Only blocks at or behind a sequence's last computed token can be less than full.
        filled_of: dict[int, int] = {}
        for sequence, holding in self._holdings.items():
            for table in holding.tables:
                for column in range(sequence.num_computed // self.block_size, len(table)):
                    filled = max(0, min(self.block_size, sequence.num_computed - column * self.block_size))
                    filled_of[table[column]] = max(filled_of.get(table[column], 0), filled)
        allocated = self._pool.num_owned * self.block_size
        return BlockStats(
            total_blocks=self.num_blocks - 1,
            free_blocks=self._pool.num_free - self._pool.num_cached,
            cached_blocks=self._pool.num_cached,
            used_blocks=self._pool.num_owned,
            slots_allocated=allocated,
            slots_filled=allocated - sum(self.block_size - filled for filled in filled_of.values()),
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
        )

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless every invariant of tables and pool holds."""
        check_blocks(self.groups, self._holdings, self._pool)
        self.swap.check_integrity()

    def _firsts(self, num_computed: int) -> list[int]:
        return [self.groups.first_column(group, num_computed) for group in range(self.num_groups)]

    def _shared(self, sequence: Sequence) -> list[tuple[int, int]]:
        """(group, column) of the blocks that the sequence would write to and others hold."""
        tables = self._holdings[sequence].tables
        first = sequence.num_computed // self.block_size
        return [(group, column) for group, table in enumerate(tables) for column in range(first, len(table))
                if self._pool.references(table[column]) > 1]

    def _chain_of(self, sequence: Sequence) -> HashChain:
        chain = sequence.hash_chain
        if chain is None or chain.generation != self._generation:
            identity = PrefixIdentity(self.weight_version, None, sequence.params.cache_salt)
            chain = sequence.hash_chain = HashChain(identity, self.block_size, self._generation)
        return chain
