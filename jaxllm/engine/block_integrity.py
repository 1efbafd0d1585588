"""The invariants of block tables: who holds which block, and what is published."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxllm.engine.block_groups import BlockGroups
from jaxllm.engine.block_pool import NULL_BLOCK, BlockPool
from jaxllm.engine.integrity import require
from jaxllm.engine.request import Sequence

if TYPE_CHECKING:
    from jaxllm.engine.block_manager import Holding


def check_blocks(groups: BlockGroups, holdings: Mapping[Sequence, Holding], pool: BlockPool) -> None:
    """Raise ``IntegrityError`` unless every invariant of tables and pool holds."""
    owners: Counter[int] = Counter()
    for sequence, holding in holdings.items():
        columns = {len(table) for table in holding.tables}
        require(len(holding.tables) == len(groups) and len(columns) == 1, "uneven tables", sequence)
        capacity = columns.pop() * groups.block_size
        require(sequence.num_computed <= capacity, "its table does not hold what is computed", sequence)
        require(holding.num_published * groups.block_size <= sequence.num_computed, "published too much", sequence)
        own = slice(sequence.num_computed // groups.block_size, sequence.num_writable // groups.block_size)
        require(sequence.num_writable <= capacity and all(
            pool.references(block) == 1 for table in holding.tables for block in table[own]),
            "it would write to blocks that are not its own", sequence)
        for group, table in enumerate(holding.tables):
            first = holding.firsts[group]
            require(first <= groups.first_column(group, sequence.num_computed), "it lacks what it sees", sequence)
            require(not any(table[:first]), "it holds what it gave back", sequence)
            held = table[first:]
            require(NULL_BLOCK not in held, "the null block is in its table", sequence)
            require(len(set(held)) == len(held), "a block occurs twice in its table", sequence)
            owners.update(held)
            for column, block in enumerate(held, first):
                _check_content(sequence, holding, group, column, pool.key(block))
    pool.check_integrity(owners)


def _check_content(sequence: Sequence, holding: Holding, group: int, column: int, key: tuple[int, bytes] | None
                   ) -> None:
    if key is None:
        return
    chain = sequence.hash_chain
    require(column < holding.num_published, "a block not computed in full is published", sequence)
    expected = None if chain is None else (group, chain.hashes[column])
    require(key == expected, "a block holds other content", sequence)
