"""``Quantized``: what was written."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Quantized:
    """The new type, the matrices that were written in it, tensors that are as they were, and the bytes of all."""

    kind: str
    changed: int
    kept: int
    bytes_before: int
    bytes_after: int
