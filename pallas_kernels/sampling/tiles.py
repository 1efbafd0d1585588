"""Work on the rows of a batch a few at a time, where that is faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

ROWS = 8
"""Rows of a tile: 8 rows of a vocabulary of 49,152 in float32 are 1.5 MiB, a core's cache."""


def map_row_tiles[Result](function: Callable[..., Result], *arguments: Any) -> Result:
    """``function(*arguments)``, where both are pytrees of arrays with rows first and a row's results are its own.

    On the CPU it runs on ``ROWS`` rows at a time. The many passes over the vocabulary then stay in the cache, and its
    temporaries small enough for the allocator to keep: whole batches take twice as long, much of it page faults.
    Elsewhere, and where ``ROWS`` does not divide the number of rows, it runs once on all of them.
    """
    rows = jax.tree.leaves(arguments)[0].shape[0]
    if rows <= ROWS or rows % ROWS:
        return function(*arguments)

    def tiled(*arguments: Any) -> Result:
        tiles = jax.tree.map(lambda x: x.reshape(rows // ROWS, ROWS, *x.shape[1:]), arguments)
        results = lax.map(lambda tile: function(*tile), tiles)
        return jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), results)

    return lax.platform_dependent(*arguments, cpu=tiled, default=function)
