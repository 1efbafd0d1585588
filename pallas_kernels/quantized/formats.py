"""The formats that weights are computed with in: how a row's numbers lie in its bytes.

Source: ``block_q4_0`` and so on of ggml's ``ggml-common.h``; I8 is one signed byte per number, with one float32 factor
per row that is kept beside it. A kind also says how products are computed (``quantized_matmul``).
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Format:
    """``block`` numbers in ``nbytes`` bytes; ``number`` names the format in GGUF files.

    scaled: each row has a factor of its own. rounds_x: what is multiplied by the rows is rounded to 8 bits.
    """

    number: int
    block: int
    nbytes: int
    scaled: bool = False
    rounds_x: bool = False

    def row_bytes(self, inputs: int) -> int:
        """Bytes of a row. Raises ValueError unless ``inputs`` is a multiple of the block."""
        if inputs % self.block:
            raise ValueError(f"a row of {inputs} numbers does not divide into blocks of {self.block}")
        return inputs // self.block * self.nbytes

    def inputs(self, row_bytes: int) -> int:
        """Numbers in a row of so many bytes."""
        return row_bytes // self.nbytes * self.block


ROUNDING = "_A8"
"""What the names of kinds end with that round activations to 8 bits (as in "W4A8")."""
_BLOCKS = {
    "Q4_0": Format(2, 32, 18),
    "Q4_1": Format(3, 32, 20),
    "Q5_0": Format(6, 32, 22),
    "Q5_1": Format(7, 32, 24),
    "Q8_0": Format(8, 32, 34),
    "Q4_K": Format(12, 256, 144),
    "Q6_K": Format(14, 256, 210),
}
FORMATS = _BLOCKS | {
    "I8": Format(24, 1, 1, scaled=True),
    **{name + ROUNDING: dataclasses.replace(found, rounds_x=True) for name, found in _BLOCKS.items()},
}
"""By name. Those of ``_A8`` lie as the kinds of GGUF files lie without it."""
