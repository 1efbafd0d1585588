"""``Quantized``: what was written."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Quantized:
    """Matrices that were written in the new type, tensors that are as they were, and the bytes of all tensors."""

    changed: int
    kept: int
    bytes_before: int
    bytes_after: int
