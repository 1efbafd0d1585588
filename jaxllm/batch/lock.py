"""A lock on an open file that ends with the process, however that ends."""

from __future__ import annotations

import sys
from typing import IO, Any

_FAR = 1 << 62
"""The offset of a byte that no file has. What is locked cannot be read by others, so a byte of the text will not do."""


def lock(file: IO[Any]) -> bool:
    """Lock a file for this process until it is closed; whether no other has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(_FAR)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
