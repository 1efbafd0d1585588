"""Giving memory back to the operating system that this process has no use for."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_CODE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \d+ +(/.*)")


_owner = False


def own_process() -> None:
    """Say that this process is jaxllm's alone: ``give_back_memory`` then lets go of JAX's code as well.

    In a process of somebody else's a debugger or profiler may have written into that code.
    """
    global _owner
    _owner = True


def give_back_memory() -> None:
    """Give back what was freed and, in a process of jaxllm's own, the code of JAX's library that is not running."""
    trim_heap()
    if _owner:
        forget_code("jaxlib")


def trim_heap() -> None:
    """Give memory that was freed back to the system where the C library otherwise keeps it (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def forget_code(package: str) -> int:
    """Let go of the pages of an imported package's machine code (Linux); those that are run come back at once.

    Importing JAX touches 80 MiB of its library's code, compiling as much, and all of that counts as memory of this
    process from then on. The pages mirror the file and nothing else: the system keeps them in its cache, as before,
    and maps them again in microseconds. Returns the bytes of code that were let go of.
    """
    release = page_release()
    if release is None:
        return 0
    folder = os.path.dirname(os.path.realpath(sys.modules[package].__file__ or "")) + os.sep
    found = map(_CODE.fullmatch, _MAPS.read_text().splitlines())
    code = [(int(match[1], 16), int(match[2], 16)) for match in found if match and match[3].startswith(folder)]
    return sum(end - start for start, end in code if release(start, end - start))


@functools.cache
def page_release() -> Callable[[int, int], bool] | None:
    """Gives back the pages of a private mapping, by address and length, and says whether it could; ``None`` where
    there is no such thing.

    What is touched again is as it was at first: zeros, or what the mapped file holds (madvise(2), ``MADV_DONTNEED``).
    """
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return lambda address, length: madvise(address, length, mmap.MADV_DONTNEED) == 0
