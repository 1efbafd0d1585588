"""Stored numbers to the dtype wanted, in pieces that fit the processor's cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxllm.weights.files import open_unbuffered, read_into

CHUNK = 1 << 15
"""Elements converted at a time: small enough that every intermediate array stays in the second-level cache."""


def cast(values: np.ndarray, out: np.ndarray) -> None:
    """Round ``values`` to the dtype of ``out``, to nearest even.

    Raises ``OverflowError`` where a finite value is out of float16's range, which bfloat16 weights easily are.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(out, values, casting="unsafe")
    if out.dtype == np.float16 and np.isinf(out).sum() > np.isinf(values).sum():
        raise OverflowError("it has values beyond float16's range; load it as bfloat16 or float32")


def read_plain(path: Path, offset: int, stored: np.dtype, out: np.ndarray) -> None:
    """Fill ``out`` (C-contiguous) with the elements of dtype ``stored`` that lie at ``offset``."""
    with open_unbuffered(path) as file:
        if out.dtype == stored:
            read_into(file, offset, out)
            return
        flat = out.reshape(-1)
        scratch = np.empty(min(CHUNK, flat.size), stored)
        for start in range(0, flat.size, CHUNK):
            part = flat[start : start + CHUNK]
            values = scratch[: part.size]
            read_into(file, offset + start * stored.itemsize, values)
            cast(values, part)
