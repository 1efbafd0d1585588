"""Arrays of zeros whose memory is taken page by page, as they are written."""

from __future__ import annotations

import ctypes
import functools
import mmap
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike

from pallas_kernels.cpu.untouched import untouched


def lazy_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """An array of zeros that XLA owns and may reuse (donation); on Linux CPUs nearly none of it takes memory yet.

    Its pages are given back to the operating system, which puts a page of zeros in the place of each when it is next
    touched (madvise(2), ``MADV_DONTNEED``). XLA by itself has no array that it does not fill, a second per GiB; the
    native library has.
    """
    release = _release()
    if release is None or jax.default_backend() != "cpu":
        return jnp.zeros(shape, dtype)
    array = untouched(shape, dtype)
    if array is not None and _release_inside(array, release):
        return array
    array = jnp.zeros(shape, dtype).block_until_ready()
    # Where that is refused (locked memory), the pages stay, and hold zeros as well.
    _release_inside(array, release)
    return array


def _release_inside(array: Array, release: Callable[[int, int], bool]) -> bool:
    """Give back the whole pages of an array and clear the rest of it; whether that was possible."""
    start, end = array.unsafe_buffer_pointer(), array.unsafe_buffer_pointer() + array.nbytes
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first >= last:
        first = last = end
    elif not release(first, last - first):
        return False
    ctypes.memset(start, 0, first - start)
    ctypes.memset(last, 0, end - last)
    return True


@functools.cache
def _release() -> Callable[[int, int], bool] | None:
    """Gives back the pages of a private mapping, by address and length; ``None`` where they would not be zero after."""
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return lambda address, length: madvise(address, length, mmap.MADV_DONTNEED) == 0
