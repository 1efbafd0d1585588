"""Decoding of GGUF tensor types by the native library."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import ml_dtypes
import numpy as np

from pallas_kernels.cpu import library

_KINDS = {"Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
          "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210)}
"""By name: the number in the file, elements per block, bytes per block."""
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_DTYPES = dict.fromkeys(("Q5_0", "Q5_1", "Q6_K"), (_BFLOAT16,))
"""Of the kinds that are not decoded into float32 as well."""


def decodes(kind: str, dtype: np.dtype) -> bool:
    """Whether the library is there and decodes this tensor type into this dtype."""
    allowed = _DTYPES.get(kind, (np.dtype(np.float32), _BFLOAT16))
    return kind in _KINDS and dtype in allowed and _function() is not None


def decode_gguf(raw: np.ndarray, kind: str, out: np.ndarray) -> None:
    """Decode whole blocks of a type that ``decodes`` allows, uint8 [blocks * bytes], into ``out`` [blocks * elements].

    Both are C-contiguous. Other Python threads run meanwhile. Raises ValueError if the sizes do not fit.
    """
    number, elements, nbytes = _KINDS[kind]
    blocks = raw.size // nbytes
    whole = raw.dtype == np.uint8 and (raw.size, out.size) == (blocks * nbytes, blocks * elements)
    if not (whole and raw.flags.c_contiguous and out.flags.c_contiguous and out.flags.writeable):
        raise ValueError(f"raw of {raw.size} bytes, out of {out.size} elements: {kind} has {elements} elements in "
                         f"{nbytes} bytes, and both must be contiguous")
    function = _function()
    if function is None or not function(number, raw.ctypes.data, blocks, out.ctypes.data, out.dtype.itemsize == 2):
        raise ValueError(f"the native library does not decode {kind}")


@functools.cache
def _function() -> Callable[..., bool] | None:
    loaded = library._load()
    function = getattr(loaded, "pallas_kernels_cpu_decode_gguf", None)
    if function is None or library.unavailable() is not None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_bool]
    function.restype = ctypes.c_bool
    return function
