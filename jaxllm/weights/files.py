"""Positional reads of a file into arrays, from any thread, without mapping it into memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import BinaryIO

import numpy as np

from jaxllm.errors import CheckpointError

ALIGNMENT = 64
"""Bytes; the alignment at which XLA's CPU client uses a numpy buffer in place instead of copying it."""


class FileReader:
    """Reads byte ranges of one file into buffers.

    The file is not mapped: pages of a mapping count as this process's memory, and a file that shrinks under it kills
    the process. Each thread holds its own handle, so that reads run in parallel on every platform.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self._local = threading.local()

    def read_into(self, offset: int, out: np.ndarray) -> None:
        """Fill ``out`` (C-contiguous) with the bytes at ``offset``."""
        handle = self._handle()
        handle.seek(offset)
        view = memoryview(out.reshape(-1).view(np.uint8))
        done = 0
        while done < len(view):
            count = handle.readinto(view[done:])  # type: ignore[attr-defined]
            if not count:
                raise CheckpointError(f"{self.path} ended at byte {offset + done} while it was being read")
            done += count

    def read(self, offset: int, count: int) -> bytes:
        """``count`` bytes at ``offset``, fewer only where the file ends."""
        handle = self._handle()
        handle.seek(offset)
        parts = []
        while count > 0 and (part := handle.read(count)):
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _handle(self) -> BinaryIO:
        handle: BinaryIO | None = getattr(self._local, "handle", None)
        if handle is None:
            handle = self._local.handle = self.path.open("rb", buffering=0)
        return handle


def empty_aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialized C-contiguous array whose data starts at a multiple of ``ALIGNMENT``."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
