"""Numbers to signed bytes."""

from __future__ import annotations

import numpy as np

INT8 = "I8"
"""The format's name."""


def quantize_int8(rows: np.ndarray, codes: np.ndarray, scale: np.ndarray) -> None:
    """Float32 [O, I] to signed bytes, as uint8 [O, I], and each row's factor, float32 [O]: its largest magnitude
    becomes 127 (symmetric, per channel).

    Raises ``OverflowError`` where a value is not finite.
    """
    largest = np.abs(rows).max(axis=1, initial=0.0)
    if not np.isfinite(largest).all():
        raise OverflowError("it has values that are infinite or no numbers, which int8 cannot hold")
    np.divide(largest, np.float32(127), out=scale)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(scale[:, None] > 0, rows / scale[:, None], 0)
    np.copyto(codes.view(np.int8), np.clip(np.rint(scaled), -127, 127), casting="unsafe")
