"""Arrays that are allocated and not filled."""

from __future__ import annotations

from typing import Any

import jax

from pallas_kernels.cpu.library import require, unavailable


def untouched(like: Any) -> Any:
    """Arrays that hold whatever their memory held, in a function that is compiled for the CPU.

    like: a tree of shapes and dtypes. ``None`` where there is no native library.
    """
    if unavailable() is not None:
        return None
    leaves, structure = jax.tree.flatten(like)
    return jax.tree.unflatten(structure, jax.ffi.ffi_call(require("pallas_kernels_untouched_v2"), leaves)())
