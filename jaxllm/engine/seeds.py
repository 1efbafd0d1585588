"""Seeds of requests that bring none, from the engine's own."""

from __future__ import annotations

import hashlib


def derived_seed(engine_seed: int, arrival: int) -> int:
    """The seed, below 2**63, of the engine's request number ``arrival``: a pure function of both numbers."""
    digest = hashlib.sha256(f"{engine_seed}:{arrival}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
