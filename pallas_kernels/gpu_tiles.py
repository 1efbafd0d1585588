"""Tile sizes of the Triton kernels: a fixed table, so that a program's results never depend on a first run's timings.

Bits depend on tiles. Whoever changes a line here changes results in the last place, and VERSION.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1


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
    """prefill and decode where the fastest is wanted; reproducible: for both, where they have to agree to the bit.

    decode_int8: decode over pools of int8.
    """

    prefill: AttentionTile
    decode: AttentionTile
    reproducible: AttentionTile
    decode_int8: AttentionTile = AttentionTile(16, 32, 4, 3)


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
        256: AttentionTiles(AttentionTile(64, 32, 8, 2), AttentionTile(16, 32, 4, 3), AttentionTile(32, 32, 8, 2)),
    },
    90: {
        64: AttentionTiles(AttentionTile(128, 64, 8, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 64, 4, 3)),
        128: AttentionTiles(AttentionTile(128, 64, 8, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 64, 8, 3)),
        256: AttentionTiles(AttentionTile(64, 32, 8, 3), AttentionTile(16, 32, 4, 3), AttentionTile(64, 32, 8, 3)),
    },
    100: {
        64: AttentionTiles(AttentionTile(128, 64, 8, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 32, 4, 3)),
        128: AttentionTiles(AttentionTile(128, 64, 8, 3), AttentionTile(16, 64, 4, 3), AttentionTile(64, 32, 8, 3)),
        256: AttentionTiles(AttentionTile(64, 32, 8, 3), AttentionTile(16, 32, 4, 3), AttentionTile(32, 32, 8, 2)),
    },
}


def attention_tiles(capability: int, head_dim: int) -> AttentionTiles:
    """Those of the newest generation in the table up to a compute capability, and the next larger head dim."""
    generation = max(known for known in _ATTENTION if known <= capability)
    sizes = _ATTENTION[generation]
    return sizes[min((size for size in sizes if size >= head_dim), default=max(sizes))]


_MATMUL = {
    0: MatmulTile(16, 32, 32, 4, 1),
    80: MatmulTile(64, 128, 32, 4, 4),
    90: MatmulTile(64, 128, 64, 4, 4),
    100: MatmulTile(64, 128, 64, 4, 4),
}


def matmul_tile(capability: int) -> MatmulTile:
    """That of the newest generation in the table up to a compute capability."""
    return _MATMUL[max(known for known in _MATMUL if known <= capability)]
