"""A lock on an open file that ends with the process, however that ends."""

from __future__ import annotations

import sys
from typing import IO, Any


def lock(file: IO[Any]) -> bool:
    """Lock a file for this process until it is closed; whether no other has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(_FAR)  # what is locked cannot be read by others: lock a byte that the file will never have
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


_FAR = 1 << 62
