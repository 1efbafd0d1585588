"""The few sizes that programs are compiled for. Work is padded up to the next one."""

from __future__ import annotations

import bisect

SMALLEST = 8
"""Fewest rows of any matrix product: below this, row results on CPUs begin to depend on their number, and cost more."""


def buckets(largest: int) -> tuple[int, ...]:
    """8, then powers of two from 32; the last is ``largest`` rounded up to a multiple of 8."""
    last = -(-largest // SMALLEST) * SMALLEST
    sizes = [SMALLEST]
    size = 32
    while sizes[-1] < last:
        sizes.append(min(size, last))
        size *= 2
    return tuple(sizes)


def bucket_for(sizes: tuple[int, ...], count: int) -> int:
    """The smallest bucket that holds ``count``."""
    return sizes[bisect.bisect_left(sizes, count)]
