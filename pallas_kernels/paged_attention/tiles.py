"""Sizes of the fixed tiles that attention is computed in on the XLA path.

Fixed means: a token's arithmetic happens in the same shapes, and in the same order, in whatever company it runs. The
values are the fastest of those measured on CPUs.
"""

from __future__ import annotations

import math

from pallas_kernels.reductions import LANES

DECODE_TILE = 16
"""Rows with a single query that are computed together."""

PREFILL_TILE = 64
"""Consecutive queries of one row that are computed together."""

GROUP_TOKENS = 256
"""About how many consecutive keys one step of the online softmax takes."""


def decode_tile(num_rows: int) -> int:
    """Rows in a decode tile of an engine with this many rows."""
    return min(DECODE_TILE, num_rows)


def prefill_tile(num_tokens_padded: int) -> int:
    """Queries in a prefill tile of a step of this many tokens."""
    return min(PREFILL_TILE, num_tokens_padded)


def blocks_per_group(block_size: int) -> int:
    """Blocks in a key group: about GROUP_TOKENS keys, and a whole number of LANES."""
    unit = LANES // math.gcd(block_size, LANES)
    return unit * max(1, round(GROUP_TOKENS / (block_size * unit)))
