"""The contract of ragged paged attention: prefill chunks and decodes of one step, over a paged KV cache."""

from __future__ import annotations

from typing import Literal, overload

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import registry
from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.scaled_pool import Pool, ScaledPool, find_pool_fault

_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


@overload
def paged_attention(
    q: Float[Array, "T N H"],
    k_pool: Pool,
    v_pool: Pool,
    metadata: PagedAttentionMetadata,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    alibi_slopes: Float[Array, " N"] | None = None,
    return_lse: Literal[False] = False,
    deterministic: bool = False,
    implementation: str | None = None,
) -> Float[Array, "T N H"]: ...


@overload
def paged_attention(
    q: Float[Array, "T N H"],
    k_pool: Pool,
    v_pool: Pool,
    metadata: PagedAttentionMetadata,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    alibi_slopes: Float[Array, " N"] | None = None,
    return_lse: Literal[True],
    deterministic: bool = False,
    implementation: str | None = None,
) -> tuple[Float[Array, "T N H"], Float[Array, "T N"]]: ...


def paged_attention(
    q: Float[Array, "T N H"],
    k_pool: Pool,
    v_pool: Pool,
    metadata: PagedAttentionMetadata,
    *,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    alibi_slopes: Float[Array, " N"] | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    implementation: str | None = None,
) -> Float[Array, "T N H"] | tuple[Float[Array, "T N H"], Float[Array, "T N"]]:
    """Attend causally from this step's queries to their rows' cached keys and values.

    Row r owns the queries ``query_start[r] : query_start[r + 1]``; they are the last positions of its context of
    ``lengths[r]`` tokens, whose keys and values (theirs included) are in the pools already. A row may have none. Query
    head n reads kv head ``n // (N // K)``. Softmax and accumulation are float32; the result has q's dtype and is zero
    for padding tokens. The pools are arrays ``[P, K, S, H]`` of q's dtype, or both `Int8Pool`s, or both
    `Float8Pool`s.

    Args:
        scale: factor on the scores, usually ``H ** -0.5``.
        window: a query at position p sees positions ``p - window + 1 .. p`` only. Older slots are not read.
        chunk: a query at position p sees positions ``p // chunk * chunk .. p`` only (Llama 4's chunked attention).
        soft_cap: scores become ``soft_cap * tanh(scores / soft_cap)``.
        sinks: one float32 logit per head that takes part in the softmax's denominator and has no value.
        alibi_slopes: one float32 number per head; that times how far a key lies back is taken from its score, after any
            soft cap (Press et al. 2022, ALiBi).
        return_lse: also return the natural log of the softmax's denominator (sinks included), float32 [T, N];
            ``-inf`` for padding tokens.
        deterministic: a query's bits are a function of its row's tokens and the tables' width: the same whether or not
            it is its row's only one, with any other rows, padding and physical blocks. On a CPU they are in any case.
            Elsewhere it costs some speed, and implementations that cannot keep it raise ValueError. The metadata can
            say it for all layers.
        implementation: a name from ``registry.implementations("paged_attention")``.
    """
    _check(q, k_pool, v_pool, metadata, scale, window, chunk, soft_cap, {"sinks": sinks, "alibi_slopes": alibi_slopes})
    operands = {"q": q, "k_pool": k_pool, "v_pool": v_pool, "metadata": metadata}
    options = {"scale": scale, "window": window, "chunk": chunk, "soft_cap": soft_cap, "sinks": sinks,
               "alibi_slopes": alibi_slopes, "return_lse": return_lse,
               "deterministic": deterministic or metadata.deterministic}
    choice = registry.choose("paged_attention", implementation, operands=operands | options)
    return choice.run(**operands, **options)


def _check(
    q: Array,
    k_pool: Pool,
    v_pool: Pool,
    metadata: PagedAttentionMetadata,
    scale: float,
    window: int | None,
    chunk: int | None,
    soft_cap: float | None,
    of_heads: dict[str, Array | None],
) -> None:
    if q.ndim != 3:
        raise ValueError(f"q must be [T, N, H], got shape {q.shape}")
    if (fault := find_pool_fault("k_pool", k_pool)) is not None:
        raise ValueError(fault)
    if v_pool.shape != k_pool.shape:
        raise ValueError(f"v_pool must have k_pool's shape {k_pool.shape}, got {v_pool.shape}")
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, pool_head_dim = k_pool.shape
    if pool_head_dim != head_dim:
        raise ValueError(f"q and the pools must have the same head dim, got {head_dim} and {pool_head_dim}")
    if num_heads % num_kv_heads:
        raise ValueError(f"q's heads must be a multiple of the pools' heads, got {num_heads} and {num_kv_heads}")
    if q.dtype not in _DTYPES:
        raise ValueError(f"q must be float32, bfloat16 or float16, got {q.dtype}")
    if isinstance(k_pool, ScaledPool) and type(v_pool) is type(k_pool):
        if (fault := find_pool_fault("v_pool", v_pool)) is not None:
            raise ValueError(fault)
    elif isinstance(k_pool, ScaledPool) or isinstance(v_pool, ScaledPool) or (
            not k_pool.dtype == v_pool.dtype == q.dtype):
        raise ValueError(f"the pools must have q's dtype {q.dtype}, got {k_pool.dtype} and {v_pool.dtype}; or both be "
                         "Int8Pools or both Float8Pools")
    if num_tokens != metadata.num_tokens_padded:
        raise ValueError(f"q has {num_tokens} tokens, metadata was made for {metadata.num_tokens_padded}")
    if block_size != metadata.block_size:
        raise ValueError(f"the pools have blocks of {block_size} slots, metadata was made for {metadata.block_size}")
    if not scale > 0:
        raise ValueError(f"scale={scale} must be positive")
    if window is not None and window < 1:
        raise ValueError(f"window={window} must be at least 1, or None for full attention")
    if chunk is not None and (chunk < 1 or window is not None):
        raise ValueError(f"chunk={chunk} must be at least 1, with window=None, which is {window}; or None")
    if soft_cap is not None and not soft_cap > 0:
        raise ValueError(f"soft_cap={soft_cap} must be positive, or None for no cap")
    for name, array in of_heads.items():
        if array is not None and (array.shape != (num_heads,) or array.dtype != jnp.float32):
            raise ValueError(f"{name} must be float32 [N] = [{num_heads}], got {array.dtype} {array.shape}")
