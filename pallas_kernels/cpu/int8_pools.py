"""Where native kernels take pools with scales: those in int8."""

from __future__ import annotations

from pallas_kernels.cpu.library import instruction_set
from pallas_kernels.scaled_pool import Int8Pool, Pool, ScaledPool

_WITH_PRODUCTS_OF_BYTES = ("avx512_bf16", "amx_bf16")


def unsupported(*pools: Pool) -> str | None:
    """Why pools are left to another implementation, or ``None``."""
    for pool in pools:
        if isinstance(pool, ScaledPool) and not isinstance(pool, Int8Pool):
            return f"pools with scales are int8, not {pool.dtype}"
    found = instruction_set()
    if found in _WITH_PRODUCTS_OF_BYTES or not any(isinstance(pool, Int8Pool) for pool in pools):
        return None
    return f"pools of int8 need {' or '.join(_WITH_PRODUCTS_OF_BYTES)}, not {found}"
