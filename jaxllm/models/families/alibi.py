"""The slopes of linear biases (Press et al. 2022, Train Short, Test Long: Attention with Linear Biases)."""

from __future__ import annotations


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """A geometric sequence that begins with its factor and ends with 1 / 256, for a power of two of heads; for other
    numbers, that of the power below, and every other one of the power above. As BLOOM's and Falcon's code has it."""
    below = 1 << heads.bit_length() - 1
    return tuple((_geometric(below, 8) + _geometric(2 * below, 8)[::2])[:heads])


def mpt_slopes(heads: int, largest: float) -> tuple[float, ...]:
    """MPT's: the last slope is ``2 ** -largest``; other numbers of heads take every other slope of the power above,
    and then those in between."""
    above = 1 << (heads - 1).bit_length()
    slopes = _geometric(above, largest)
    return tuple(slopes if above == heads else (slopes[1::2] + slopes[::2])[:heads])


def _geometric(count: int, largest: float) -> list[float]:
    return [2.0 ** (-largest * (number + 1) / count) for number in range(count)]
