"""Arrays of zeros whose memory is taken page by page, as they are written."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, DTypeLike


def lazy_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An array of zeros that XLA owns and may reuse (donation); on Linux CPUs nearly none of it takes memory yet.

    XLA has no array that it does not fill. So its pages are given back to the operating system, which puts a page of
    zeros in the place of each when it is next touched (madvise(2), ``MADV_DONTNEED``).
    """
    array = jnp.zeros(shape, dtype).block_until_ready()
    release = _release()
    if release is not None and all(device.platform == "cpu" for device in array.devices()):
        start, end = array.unsafe_buffer_pointer(), array.unsafe_buffer_pointer() + array.nbytes
        # Whole pages only: others share the first and the last.
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            # Where it is refused (locked memory), the pages stay, and they hold zeros as well.
            release(first, last - first)
    return array


@functools.cache
def _release() -> Callable[[int, int], None] | None:
    """Gives back the pages of a private mapping, by address and length; ``None`` where they would not be zero after."""
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return lambda address, length: madvise(address, length, mmap.MADV_DONTNEED)
