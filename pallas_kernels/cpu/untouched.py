"""Arrays that are allocated and not filled."""

from __future__ import annotations

import functools

import jax
from jaxtyping import Array, DTypeLike

from pallas_kernels.cpu.library import require, unavailable


def untouched(shape: tuple[int, ...], dtype: DTypeLike) -> Array | None:
    """An array on the CPU that holds whatever its memory held; ``None`` where there is no native library."""
    if unavailable() is not None:
        return None
    return _allocation(shape, jax.numpy.dtype(dtype).name)().block_until_ready()


@functools.lru_cache(maxsize=8)
def _allocation(shape: tuple[int, ...], dtype: str) -> jax.stages.Compiled:
    call = jax.ffi.ffi_call(require("pallas_kernels_untouched_v1"), jax.ShapeDtypeStruct(shape, dtype))
    return jax.jit(lambda: call()).lower().compile()
