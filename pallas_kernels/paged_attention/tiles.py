"""Sizes of the fixed tiles that attention is computed in on the XLA path.

Fixed means: a token's arithmetic happens in the same shapes, and in the same order, in whatever company it runs. The
values did well among those tried on a CPU with two cores; a machine of another kind may want others.
"""

from __future__ import annotations

DECODE_TILE = 8
"""Most rows with a single query that are computed together."""

PREFILL_TILE = 64
"""Most consecutive queries of one row that are computed together."""

GROUP_TOKENS = 256
"""About how many consecutive keys one step of the online softmax takes."""


def decode_tile(num_rows: int, num_tokens_padded: int) -> int:
    """Rows in a decode tile; small steps take small tiles, since an unused place costs as much as a used one."""
    return max(1, min(DECODE_TILE, num_rows, num_tokens_padded // 4))


def prefill_tile(num_tokens_padded: int) -> int:
    """Queries in a prefill tile of a step of this many tokens."""
    return min(PREFILL_TILE, num_tokens_padded)


def blocks_per_group(block_size: int) -> int:
    """Blocks in a key group: about GROUP_TOKENS keys."""
    return max(1, round(GROUP_TOKENS / block_size))
