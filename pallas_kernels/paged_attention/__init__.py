"""Ragged paged attention: prefill chunks and decodes of one step, over a paged KV cache."""

from pallas_kernels.paged_attention.api import paged_attention
from pallas_kernels.paged_attention.metadata import (
    PagedAttentionMetadata,
    TokenRows,
    paged_attention_metadata,
    positions_and_rows,
)

__all__ = [
    "PagedAttentionMetadata",
    "TokenRows",
    "paged_attention",
    "paged_attention_metadata",
    "positions_and_rows",
]
