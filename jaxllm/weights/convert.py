"""Stored numbers to the dtype wanted, in pieces that fit the processor's cache."""

from __future__ import annotations

import numpy as np

from jaxllm.weights.files import FileReader

CHUNK = 1 << 16
"""Elements converted at a time: small enough that every intermediate array stays in the second-level cache."""


def cast(values: np.ndarray, out: np.ndarray) -> None:
    """Round ``values`` to the dtype of ``out`` (to nearest even); values out of its range become infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(out, values, casting="unsafe")


def read_plain(reader: FileReader, offset: int, stored: np.dtype, out: np.ndarray) -> None:
    """Fill ``out`` (C-contiguous) with the elements of dtype ``stored`` that lie at ``offset``."""
    if out.dtype == stored:
        reader.read_into(offset, out)
        return
    flat = out.reshape(-1)
    scratch = np.empty(min(CHUNK, flat.size), stored)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        values = scratch[: part.size]
        reader.read_into(offset + start * stored.itemsize, values)
        cast(values, part)
