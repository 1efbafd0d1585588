"""Tile sizes of the Triton kernels: a fixed table, so that a program's results never depend on a first run's timings.

Bits depend on tiles. Whoever changes a line here changes results in the last place, and VERSION.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

VERSION = 2


@dataclass(frozen=True)
class AttentionTile:
    """rows: of queries; keys: of a step of the online softmax; warps: of a thread block.

    stages: steps whose keys are under way or in use at a time.
    """

    rows: int
    keys: int
    warps: int
    stages: int


@dataclass(frozen=True)
class AttentionTiles:
    """prefill and decode where the fastest is wanted; reproducible: for both, where they have to agree to the bit."""

    prefill: AttentionTile
    decode: AttentionTile
    reproducible: AttentionTile


@dataclass(frozen=True)
class MatmulTile:
    """rows, columns: of results. inner: products of a step. stages: steps whose operands are in flight."""

    rows: int
    columns: int
    inner: int
    warps: int
    stages: int

    def constants(self) -> dict[str, int]:
        """As the kernels name them."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "INNER": self.inner, "STAGES": self.stages}


# By generation (compute capability; 0 is the interpreter) and head dim, padded to a power of two.
_ATTENTION = {
    0: {
        16: AttentionTiles(AttentionTile(16, 16, 4, 1), AttentionTile(16, 32, 4, 1), AttentionTile(16, 32, 4, 1)),
    },
    80: {
        64: AttentionTiles(AttentionTile(64, 32, 4, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 32, 8, 3)),
        128: AttentionTiles(AttentionTile(64, 32, 4, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 32, 8, 3)),
        256: AttentionTiles(AttentionTile(64, 32, 8, 3), AttentionTile(16, 32, 4, 3), AttentionTile(32, 32, 8, 3)),
    },
    90: {
        64: AttentionTiles(AttentionTile(128, 64, 8, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 64, 4, 3)),
        128: AttentionTiles(AttentionTile(128, 64, 8, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 64, 8, 3)),
        256: AttentionTiles(AttentionTile(64, 32, 8, 3), AttentionTile(16, 32, 4, 3), AttentionTile(64, 32, 8, 2)),
    },
    100: {
        64: AttentionTiles(AttentionTile(128, 64, 8, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 32, 4, 3)),
        128: AttentionTiles(AttentionTile(128, 64, 8, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 32, 8, 3)),
        256: AttentionTiles(AttentionTile(64, 32, 8, 3), AttentionTile(16, 32, 4, 3), AttentionTile(32, 32, 8, 3)),
    },
}


# For pools in bytes, whose numbers are converted in registers, tiles that leave room for that; where there are none,
# those of _ATTENTION, and decodes of 32 keys a step.
_ATTENTION_SCALED = {
    90: {
        256: AttentionTiles(AttentionTile(64, 32, 8, 3), AttentionTile(16, 32, 4, 3), AttentionTile(32, 32, 8, 3)),
    },
}


def attention_tiles(capability: int, head_dim: int, scaled: bool = False) -> AttentionTiles:
    """Those of the newest generation in the table up to a compute capability, and the next larger head dim.

    scaled: for pools in bytes.
    """
    generation = max(known for known in _ATTENTION if known <= capability)
    sizes = _ATTENTION[generation]
    size = min((size for size in sizes if size >= head_dim), default=max(sizes))
    if not scaled:
        return sizes[size]
    decode = AttentionTile(16, 32, 4, sizes[size].decode.stages)
    return _ATTENTION_SCALED.get(generation, {}).get(size) or replace(sizes[size], decode=decode)


_MATMUL = {
    0: MatmulTile(16, 32, 32, 4, 1),
    80: MatmulTile(64, 128, 32, 4, 4),
    90: MatmulTile(64, 128, 64, 4, 4),
    100: MatmulTile(64, 128, 64, 4, 4),
}


def matmul_tile(capability: int) -> MatmulTile:
    """That of the newest generation in the table up to a compute capability."""
    return _MATMUL[max(known for known in _MATMUL if known <= capability)]
