"""Ragged paged attention in plain XLA: loops of data-dependent length over tiles of fixed shape.

Rows with one query ("decodes") and rows with several ("prefill chunks") are computed in loops of their own
(`decode_rows`, `prefill_chunks`), with the same arithmetic: `online_softmax` over groups of whole blocks that begin at
absolute positions. So the work follows the real tokens, not the padded sizes, and a query's result is the same in
whatever company it runs.
"""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.paged_attention.decode_rows import decode_rows
from pallas_kernels.paged_attention.metadata import PagedAttentionMetadata
from pallas_kernels.paged_attention.online_softmax import Softmax
from pallas_kernels.paged_attention.paged_keys import PagedKeys
from pallas_kernels.paged_attention.prefill_chunks import prefill_chunks


def paged_attention_xla(
    q: Float[Array, "T N H"],
    k_pool: Float[Array, "P K S H"],
    v_pool: Float[Array, "P K S H"],
    metadata: PagedAttentionMetadata,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: Float[Array, " N"] | None = None,
    return_lse: bool = False,
) -> Array | tuple[Array, Array]:
    """The contract of `paged_attention`, for any XLA backend; bitwise independent of the batch on the CPU."""
    softmax = Softmax(scale, window, soft_cap, sinks)
    keys = PagedKeys(k_pool, v_pool, metadata.tables)
    decode, decode_lse = decode_rows(q, keys, metadata, softmax)
    out, lse = prefill_chunks(q, keys, metadata, softmax)
    index = metadata.tiles.decode_index
    is_decode = index >= 0
    out = jnp.where(is_decode[:, None, None], decode[index], out)
    if not return_lse:
        return out
    return out, jnp.where(is_decode[:, None], decode_lse[index], lse)
