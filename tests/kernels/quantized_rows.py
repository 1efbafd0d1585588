"""Random weights in every format."""

from __future__ import annotations

import numpy as np

from pallas_kernels.quantized import FORMATS, ROUNDING

DECODED = [kind for kind, layout in FORMATS.items() if not layout.rounds_x]
"""Kinds that x is not rounded to 8 bits for."""
A8 = [kind for kind, layout in FORMATS.items() if layout.rounds_x]

_HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208],
           "I8": []}
"""The bytes of a block at which its float16 scales lie."""


def random_rows(kind, inputs, outputs, seed=0):
    """Random codes under scales of a checkpoint's size: uint8 [O, bytes], and I8's factors."""
    generator = np.random.default_rng(seed)
    layout = FORMATS[kind]
    blocks = generator.integers(0, 256, (outputs * (inputs // layout.block), layout.nbytes), np.uint8)
    stored = kind.removesuffix(ROUNDING)
    for at in _HALVES[stored]:
        scales = generator.normal(0, 1e-4 if stored == "Q6_K" else 1e-3, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    scale = generator.uniform(1e-4, 1e-2, outputs).astype(np.float32) if layout.scaled else None
    return blocks.reshape(outputs, inputs // layout.block * layout.nbytes), scale
