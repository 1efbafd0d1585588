"""Attention kernels for LLM inference in JAX: arrays in, arrays out, for any JAX project.

A paged KV cache is a pair of pools per layer, ``[P blocks, K kv heads, S slots, H head dim]``; a block table per
request row names its blocks. One step runs prefill chunks and single-token decodes together, as T tokens in a row::

    from pallas_kernels import kv_write, paged_attention, paged_attention_metadata

    metadata = paged_attention_metadata(tables, query_start, lengths, num_tokens_padded=T, block_size=S)  # once a step
    k_pool, v_pool = kv_write(k_pool, v_pool, k, v, slots)                                              # each layer
    out = paged_attention(q, k_pool, v_pool, metadata, scale=H**-0.5)

Block 0 is the null block: padding tokens write there, and nothing reads it. Each operation has several
implementations behind one contract; `explain` says which one runs and why.
"""

from pallas_kernels.builtin import register_all as _register_all
from pallas_kernels.gated_matmul import gated_matmul
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.kv_write import kv_write
from pallas_kernels.matmul import matmul
from pallas_kernels.paged_attention import (
    PagedAttentionMetadata,
    TokenRows,
    paged_attention,
    paged_attention_metadata,
    positions_and_rows,
)
from pallas_kernels.quantized import dequantize, quantized_gated_matmul, quantized_grouped_matmul, quantized_matmul
from pallas_kernels.registry import explain, implementations, operations
from pallas_kernels.rms_norm import rms_norm
from pallas_kernels.rope_kv_write import rope_kv_write
from pallas_kernels.scaled_pool import Float8Pool, Int8Pool

_register_all()

__all__ = [
    "Float8Pool",
    "Int8Pool",
    "PagedAttentionMetadata",
    "TokenRows",
    "dequantize",
    "explain",
    "gated_matmul",
    "grouped_matmul",
    "implementations",
    "kv_write",
    "matmul",
    "operations",
    "paged_attention",
    "paged_attention_metadata",
    "positions_and_rows",
    "quantized_gated_matmul",
    "quantized_grouped_matmul",
    "quantized_matmul",
    "rms_norm",
    "rope_kv_write",
]
