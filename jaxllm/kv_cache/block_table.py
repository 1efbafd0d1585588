"""The block table on the device: a value, with pure functions that return new ones.

``blocks[g, r, m]`` is the physical block that holds positions ``m * S .. m * S + S - 1`` of row ``r`` in group ``g``;
0 is the null block. A table can be held, saved, forked and restored like any pytree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

NULL_BLOCK = 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockTable:
    """Block numbers per group, row and column: ``i32[G, R, M]``."""

    blocks: Int[Array, "G R M"]


def _put(blocks: np.ndarray) -> Array:
    return jax.device_put(blocks, may_alias=False)


def empty(groups: int, rows: int, columns: int, put: Callable[[np.ndarray], Array] = _put) -> BlockTable:
    """A table whose every entry is the null block. put: gives a device what is not changed on the host any more."""
    # Not ``jnp.zeros``, which compiles: an engine's first table is made at every start.
    return BlockTable(put(np.zeros((groups, rows, columns), np.int32)))


def abstract(groups: int, rows: int, columns: int) -> BlockTable:
    """Shapes and dtypes of a table."""
    return BlockTable(jax.ShapeDtypeStruct((groups, rows, columns), np.int32))  # type: ignore[arg-type]


def update(table: BlockTable, changes: Int[Array, "C 4"]) -> BlockTable:
    """Set entries from (group, row, column, block) lines; lines with a negative row are padding."""
    group, row, column, block = changes.T
    row = jnp.where(row < 0, table.blocks.shape[1], row)
    return BlockTable(table.blocks.at[group, row, column].set(block, mode="drop"))


def append(table: BlockTable, group: int, row: Int[Array, ""], column: Int[Array, ""], block: Int[Array, ""]
           ) -> BlockTable:
    """Give a row its next block."""
    return BlockTable(table.blocks.at[group, row, column].set(block))


def fork(table: BlockTable, source: Int[Array, ""], target: Int[Array, ""]) -> BlockTable:
    """Let row ``target`` hold the same blocks as row ``source``."""
    return BlockTable(table.blocks.at[:, target].set(table.blocks[:, source]))


def swap_rows(table: BlockTable, first: Int[Array, ""], second: Int[Array, ""]) -> BlockTable:
    """Exchange two rows."""
    rows = table.blocks[:, jnp.stack([second, first])]
    return BlockTable(table.blocks.at[:, jnp.stack([first, second])].set(rows))


def clear(table: BlockTable, row: Int[Array, ""]) -> BlockTable:
    """Point every column of a row at the null block."""
    return BlockTable(table.blocks.at[:, row].set(NULL_BLOCK))


def slots(table: BlockTable, group: int, rows: Int[Array, " T"], positions: Int[Array, " T"], valid: Bool[Array, " T"],
          block_size: int) -> Int[Array, " T"]:
    """Where tokens live in the pool, ``block * S + offset``; tokens that are not valid go to the null block."""
    columns = positions // block_size
    blocks = table.blocks[group].at[rows, columns].get(mode="fill", fill_value=NULL_BLOCK)
    return jnp.where(valid, blocks, NULL_BLOCK) * block_size + positions % block_size
