"""Tile sizes of the Mosaic GPU kernels: a fixed table, so that nothing is tuned, or changes its bits, at a first run.

A row's bits follow from ``keys``, ``split`` and ``inner`` alone; the other numbers may be tuned freely.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1
"""Of the numbers in this table that results depend on."""


@dataclass(frozen=True)
class AttentionTiles:
    """How attention is cut for a head size.

    keys: of a tile, 64 or 128; also the unit in which positions are walked.
    split: positions of a split, a multiple of ``keys``: the softmax starts afresh at its multiples.
    consumers: warpgroups that compute, 1 or 2, each with 64 packed queries.
    stages: tiles of keys, and of values, in flight.
    """

    keys: int
    split: int
    consumers: int
    stages: int


ATTENTION: dict[str, dict[int, AttentionTiles]] = {
    "hopper": {
        64: AttentionTiles(keys=128, split=512, consumers=2, stages=4),
        128: AttentionTiles(keys=128, split=512, consumers=2, stages=2),
        256: AttentionTiles(keys=64, split=512, consumers=1, stages=2),
    },
}
"""By architecture and head size."""

SCALED_ATTENTION: dict[str, dict[int, AttentionTiles]] = {
    "hopper": {
        64: AttentionTiles(keys=64, split=512, consumers=2, stages=4),
        128: AttentionTiles(keys=64, split=512, consumers=2, stages=4),
    },
}
"""The same over pools in bytes: beside their rings shared memory holds a tile of each as 16-bit numbers. For heads of
256 a thread's registers do not hold what decoding takes beside the sum of values: hundreds of bytes are spilled."""


@dataclass(frozen=True)
class MatmulTiles:
    """How a product is cut among the two consumers of a thread block, 64 rows each.

    columns: of a thread block, at most. down, across: consumers one below the other, and side by side.
    inner: products of a step; 64 fill the swizzle of 128 bytes. stages: steps in flight.
    """

    columns: int
    down: int
    across: int
    inner: int
    stages: int


GROUPED_MATMUL: dict[str, dict[str, MatmulTiles]] = {
    "hopper": {
        "few": MatmulTiles(columns=256, down=1, across=2, inner=64, stages=4),
        "many": MatmulTiles(columns=256, down=2, across=1, inner=64, stages=3),
    },
}
"""By architecture, and for groups with few rows or many."""

MANY_ROWS = 128
"""Of a group on average, from which on tiles are those for many."""

PARTIAL_BYTES = 64 << 20
"""Memory for the accumulators of rows that are split over their keys; rows beyond it are computed whole, with the same
result."""
