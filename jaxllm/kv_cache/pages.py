"""Arrays of zeros whose memory is taken page by page, as they are written."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxllm.memory import page_release
from pallas_kernels.cpu.untouched import untouched


def unfilled(like: Any) -> Any:
    """Arrays for ``cleared``, in a function that is compiled: zeros, or not filled where ``cleared`` makes them zeros.

    like: a tree of shapes and dtypes. XLA by itself has no array that it does not fill, a second per GiB; the native
    library has.
    """
    found = None if _release_here() is None else untouched(like)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like) if found is None else found


def cleared(arrays: Any) -> Any:
    """The zeros that ``unfilled`` stands for: XLA owns them and may reuse them (donation), and on Linux CPUs nearly
    none of them takes memory yet.

    Their pages are given back to the operating system, which puts a page of zeros in the place of each when it is next
    touched.
    """
    release = _release_here()
    if release is None:
        return arrays
    # Where it is refused (locked memory), other arrays are filled.
    return jax.tree.map(
        lambda array: array if all(_release_inside(shard.data, release) for shard in array.addressable_shards)
        else jnp.zeros(array.shape, array.dtype, device=array.sharding), jax.block_until_ready(arrays))


def _release_here() -> Callable[[int, int], bool] | None:
    return page_release() if jax.default_backend() == "cpu" else None


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
