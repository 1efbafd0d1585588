"""The native decoder refuses what does not fit, and lets other threads run."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernels.native import needs_native

from pallas_kernels.cpu.gguf import decode_gguf, decodes

pytestmark = needs_native


def test_it_says_what_it_decodes():
    assert all(decodes(kind, np.dtype(dtype)) for kind in ("Q4_0", "Q4_1", "Q8_0", "Q4_K")
               for dtype in (np.float32, ml_dtypes.bfloat16))
    assert not decodes("Q4_1", np.dtype(np.float16))
    for kind in ("Q5_0", "Q5_1", "Q6_K"):
        assert decodes(kind, np.dtype(ml_dtypes.bfloat16))
        assert not decodes(kind, np.dtype(np.float32))


@pytest.mark.parametrize(("raw", "out"), [
    (np.zeros(21, np.uint8), np.zeros(32, np.float32)),
    (np.zeros(20, np.uint8), np.zeros(31, np.float32)),
    (np.zeros(40, np.uint8)[::2], np.zeros(32, np.float32)),
    (np.zeros(20, np.uint8), np.zeros(64, np.float32)[::2]),
    (np.zeros(20, np.float32), np.zeros(32, np.float32)),
], ids=["a byte too many", "an element too few", "raw with gaps", "out with gaps", "raw of floats"])
def test_sizes_that_do_not_fit_are_refused(raw, out):
    with pytest.raises(ValueError, match="Q4_1 has 32 elements in 20 bytes"):
        decode_gguf(raw, "Q4_1", out)


def test_nothing_beside_the_result_is_written():
    out = np.full(34, 5.0, np.float32)
    decode_gguf(np.zeros(20, np.uint8), "Q4_1", out[1:33])
    assert (out[0], out[33]) == (5.0, 5.0)
    assert not out[1:33].any()
