"""KV write in Triton, in place."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array, Float, Int32

from pallas_kernels.scaled_pool import Pool, ScaledPool, largest_of
from pallas_kernels.triton_launch import FLOATS, float8_unsupported, launch, power_of_two

_FEW_TOKENS = 256
LARGEST_HEAD_DIM = 256


def unsupported(k_pool: Pool, k: Array, v: Array, **others: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    return heads_unsupported(k, v) or float8_unsupported("pools", k_pool.dtype)


def kv_write_triton(
    k_pool: Pool,
    v_pool: Pool,
    k: Float[Array, "T K H"],
    v: Float[Array, "T K H"],
    slots: Int32[Array, " T"],
) -> tuple[Pool, Pool]:
    """The contract of `kv_write`; tokens of padding are not written at all."""
    from pallas_kernels.kv_write.triton_kernels import write_heads

    tokens, heads = k.shape[:2]
    size = tokens_of_a_program(tokens)
    pools = split_pools(k_pool, v_pool)
    written = launch(
        write_heads, {"k": k, "v": v, "slots": slots, **pools},
        grid=(-(-tokens // size), heads, 2), updated=tuple(name for name in pools if pools[name] is not None), warps=4,
        constants={"NUM_TOKENS": tokens, "HEADS": heads, "SLOTS": k_pool.shape[2], "K_DIM": k.shape[2],
                   "V_DIM": v.shape[2], "K_PADDED": power_of_two(k.shape[2]), "V_PADDED": power_of_two(v.shape[2]),
                   "LARGEST": largest_of(k_pool), "TOKENS": size})
    return join_pools(written, type(k_pool))


def heads_unsupported(*inputs: Array) -> str | None:
    """Why heads of these dtypes and sizes are not written here, or ``None``."""
    for x in inputs:
        if x.dtype not in FLOATS:
            return f"keys and values are bfloat16 or float16, not {x.dtype}"
        if x.shape[2] % 2 or x.shape[2] > LARGEST_HEAD_DIM:
            return f"head dims are even and up to {LARGEST_HEAD_DIM}, not {x.shape[2]}"
    return None


def tokens_of_a_program(tokens: int) -> int:
    """Few, where there are not enough tokens to occupy a GPU."""
    return 4 if tokens <= _FEW_TOKENS else 16


def split_pools(k_pool: Pool, v_pool: Pool) -> dict[str, Any]:
    """The arrays of a pair of pools, by kernels' names for them."""
    if isinstance(k_pool, ScaledPool) and isinstance(v_pool, ScaledPool):
        return {"k_pool": k_pool.values, "v_pool": v_pool.values, "k_scales": k_pool.scales, "v_scales": v_pool.scales}
    return {"k_pool": k_pool, "v_pool": v_pool, "k_scales": None, "v_scales": None}


def join_pools(arrays: tuple[Array, ...], kind: type[Any]) -> tuple[Pool, Pool]:
    """Pools, of a kind, of what `split_pools` made of them."""
    if len(arrays) == 2:
        return arrays[0], arrays[1]
    k_pool, v_pool, k_scales, v_scales = arrays
    return kind(k_pool, k_scales), kind(v_pool, v_scales)
