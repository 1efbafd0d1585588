"""Who attends to what in one step: block tables, row boundaries, lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int32


def _static() -> Any:
    return field(metadata={"static": True})


@partial(jax.tree_util.register_dataclass)
@dataclass(frozen=True)
class PagedAttentionMetadata:
    """What every attention layer of a step needs to know beside q and the pools; made by `paged_attention_metadata`."""

    tables: Int32[Array, "R M"]
    query_start: Int32[Array, " R_plus_1"]
    lengths: Int32[Array, " R"]
    num_tokens_padded: int = _static()
    block_size: int = _static()
    deterministic: bool = field(default=False, metadata={"static": True})
    stride: int | None = field(default=None, metadata={"static": True})
    offset: Int32[Array, ""] | None = None


@partial(jax.tree_util.register_dataclass)
@dataclass(frozen=True)
class TokenRows:
    """For each token of the step: its row, its position in that row's context, and whether it is real or padding."""

    rows: Int32[Array, " T"]
    positions: Int32[Array, " T"]
    valid: Bool[Array, " T"]


def positions_and_rows(
    query_start: Int32[Array, " R_plus_1"], lengths: Int32[Array, " R"], num_tokens_padded: int
) -> TokenRows:
    """Find row, position and validity of each token; padding gets row 0 and position 0."""
    _check_rows(query_start, lengths)
    token = jnp.arange(num_tokens_padded, dtype=jnp.int32)
    valid = token < query_start[-1]
    row = jnp.sum(query_start[None, 1:] <= token[:, None], axis=1, dtype=jnp.int32)
    row = jnp.where(valid, row, 0)
    position = (lengths - query_start[1:])[row] + token
    return TokenRows(row, jnp.where(valid, position, 0), valid)


@jax.named_scope("metadata")
def paged_attention_metadata(
    tables: Int32[Array, "R M"],
    query_start: Int32[Array, " R_plus_1"],
    lengths: Int32[Array, " R"],
    num_tokens_padded: int,
    block_size: int,
    deterministic: bool = False,
    stride: int | None = None,
    offset: Int32[Array, ""] | None = None,
) -> PagedAttentionMetadata:
    """Describe one step; computed once, before the layers, inside the traced function.

    ``tables[r]`` holds the physical blocks of row r in order of position (entries past its length are never used),
    ``query_start[r]`` the first of its tokens in q, ``lengths[r]`` its context including this step's tokens.
    deterministic: as if each `paged_attention` of the step were given it. stride, offset: both or neither, where the
    pools hold a part of every block: slot s of a row's block number m holds position ``m * stride + offset + s``,
    ``block_size <= stride`` and ``0 <= offset <= stride - block_size``, the same for all rows. Attention is then to the
    keys that are here alone; a query that sees none of them gets zeros and, without sinks, a log-sum-exp of ``-inf``.
    """
    _check_rows(query_start, lengths)
    if tables.ndim != 2 or tables.shape[0] != lengths.shape[0]:
        raise ValueError(f"tables must be [R, M] with R = {lengths.shape[0]} (from lengths), got {tables.shape}")
    _check_int32("tables", tables)
    if num_tokens_padded < 1:
        raise ValueError(f"num_tokens_padded={num_tokens_padded} must be at least 1")
    if block_size < 1:
        raise ValueError(f"block_size={block_size} must be at least 1")
    if (stride is None) != (offset is None):
        raise ValueError(f"stride={stride} and offset={offset} go together: both or neither")
    if stride is not None and stride < block_size:
        raise ValueError(f"stride={stride} must be at least block_size={block_size}")
    if offset is not None:
        if offset.shape != ():
            raise ValueError(f"offset must be a scalar, got shape {offset.shape}")
        _check_int32("offset", offset)
    return PagedAttentionMetadata(tables, query_start, lengths, num_tokens_padded, block_size, deterministic, stride,
                                  offset)


def _check_rows(query_start: Array, lengths: Array) -> None:
    if lengths.ndim != 1 or lengths.shape[0] < 1:
        raise ValueError(f"lengths must be [R] with R >= 1, got shape {lengths.shape}")
    if query_start.shape != (lengths.shape[0] + 1,):
        raise ValueError(f"query_start must be [R + 1] = [{lengths.shape[0] + 1}], got shape {query_start.shape}")
    _check_int32("query_start", query_start)
    _check_int32("lengths", lengths)


def _check_int32(name: str, array: Array) -> None:
    if array.dtype != jnp.int32:
        raise ValueError(f"{name} must be int32, got {array.dtype}")
