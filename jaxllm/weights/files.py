"""Reading byte ranges of files into arrays, without mapping the files into memory."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import numpy as np

from jaxllm.errors import CheckpointError

ALIGNMENT = 64
"""Bytes; the alignment at which XLA's CPU client uses a numpy buffer in place instead of copying it."""


def open_unbuffered(path: Path) -> FileIO:
    """The file, for ``read_into``.

    A file is not mapped for its data: the pages of a mapping count as memory of this process, and a file that shrinks
    under a mapping kills the process. Each reader opens its own, so that threads read in parallel on every platform.
    """
    return FileIO(path, "r")


def read_into(file: FileIO, offset: int, out: np.ndarray) -> None:
    """Fill ``out`` (C-contiguous) with the bytes at ``offset``."""
    file.seek(offset)
    view = memoryview(out.reshape(-1).view(np.uint8))
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise CheckpointError(f"{file.name!s} ended at byte {offset + done} while it was being read")
        done += count


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialized C-contiguous array whose data starts at a multiple of ``ALIGNMENT``."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
