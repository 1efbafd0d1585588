"""Paged attention in Triton: the online softmax over tiles of keys, and the kernels around it.

A program holds ROWS queries of one kv head as rows of one tile: the GROUP query heads that read it, times as many
consecutive tokens as fit, so that small groups fill the tile. It walks keys in tiles of KEYS that begin at multiples of
KEYS, through the block table. Logits are in units of log 2, since ``exp2`` is what the hardware has.

A query's result is a function of its own keys alone. A tile in which it sees nothing leaves its state as it was, to the
bit: weights of 0 and a factor of 1. Slots that no query of a program may see are not loaded.

Splits are runs of SPLIT keys that begin at multiples of SPLIT. Each begins afresh, and `_merge` adds them up from the
first to the last: in `combine_splits` after `decode_attention`, and in `ragged_attention` if it has splits too; with
equal tiles both do the same arithmetic for a query. (Floating-point contraction is off for these kernels.)
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)
"""Running maximum before any key was seen; finite, so that differences with it are never NaN."""

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _add_keys(
    largest, total, values, q, positions, row_table, first_key, end_key, kv_head, k_pool, v_pool, k_scales, v_scales,
    scale, soft_cap, begin, end,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, QUANTIZED: tl.constexpr,
    KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Take in the tiles of keys from begin to end; MASKED, where some query does not see all of them."""
    dims = tl.arange(0, PADDED)
    for tile in tl.range(begin, end, num_stages=STAGES):
        at = tile * KEYS + tl.arange(0, KEYS)
        readable = at < end_key
        if WINDOW > 0:
            readable &= at >= first_key
        if KEYS <= SLOTS:
            block = tl.load(row_table + tile * KEYS // SLOTS).to(tl.int64)
            slot = (block * KV_HEADS + kv_head) * SLOTS + tile * KEYS % SLOTS + tl.arange(0, KEYS)
        else:
            if MASKED:
                block = tl.load(row_table + at // SLOTS, mask=readable, other=0).to(tl.int64)
            else:
                block = tl.load(row_table + at // SLOTS).to(tl.int64)
            slot = (block * KV_HEADS + kv_head) * SLOTS + at % SLOTS
        k_at = k_pool + slot[None, :] * HEAD_DIM + dims[:, None]
        v_at = v_pool + slot[:, None] * HEAD_DIM + dims[None, :]
        if MASKED:
            k = tl.load(k_at, mask=readable[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)
            v = tl.load(v_at, mask=readable[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        elif PADDED == HEAD_DIM:
            k = tl.load(k_at)
            v = tl.load(v_at)
        else:
            k = tl.load(k_at, mask=(dims < HEAD_DIM)[:, None], other=0.0)
            v = tl.load(v_at, mask=(dims < HEAD_DIM)[None, :], other=0.0)

        scores = tl.dot(q, k.to(q.dtype))
        if QUANTIZED:
            if MASKED:
                k_factor = tl.load(k_scales + slot, mask=readable, other=0)
                v_factor = tl.load(v_scales + slot, mask=readable, other=0)
            else:
                k_factor = tl.load(k_scales + slot)
                v_factor = tl.load(v_scales + slot)
            scores = scores * k_factor[None, :]
        if SOFT_CAP:
            # tanh(x) = 2 / (1 + exp(-2 x)) - 1, with x = scores * scale / soft_cap
            doubled = tl.exp2(scores * (-2 * LOG2_E * scale / soft_cap))
            scores = soft_cap * LOG2_E * (2 / (1 + doubled) - 1)
        else:
            scores = scores * (scale * LOG2_E)
        if MASKED:
            seen = at[None, :] <= positions[:, None]
            if WINDOW > 0:
                seen &= at[None, :] > positions[:, None] - WINDOW
            scores = tl.where(seen, scores, float("-inf"))

        new_largest = tl.maximum(largest, tl.max(scores, 1))
        factor = tl.exp2(largest - new_largest)
        weights = tl.exp2(scores - new_largest[:, None])
        total = total * factor + tl.sum(weights, 1)
        values = values * factor[:, None]
        if QUANTIZED:
            # In bfloat16, whose range is float32's: scales can be of any size.
            weights = weights * v_factor[None, :]
            values = tl.dot(weights.to(tl.bfloat16), v.to(tl.float32).to(tl.bfloat16), values)
        else:
            values = tl.dot(weights.to(v.dtype), v, values)
        largest = new_largest
    return largest, total, values


@triton.jit
def _attend(
    q, positions, first_position, last_position, row_table, first_key, end_key, kv_head, begin, end,
    k_pool, v_pool, k_scales, v_scales, scale, soft_cap,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, QUANTIZED: tl.constexpr, KV_HEADS: tl.constexpr,
    SLOTS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The tiles of keys from begin to end: without masks those that all queries see whole, with masks the others."""
    largest = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    values = tl.zeros((ROWS, PADDED), tl.float32)
    whole_begin = begin
    if WINDOW > 0:
        whole_begin = tl.minimum(tl.maximum(begin, tl.cdiv(tl.maximum(last_position - WINDOW + 1, 0), KEYS)), end)
    whole_end = tl.maximum(tl.minimum((first_position + 1) // KEYS, end), whole_begin)
    if WINDOW > 0:
        largest, total, values = _add_keys(
            largest, total, values, q, positions, row_table, first_key, end_key, kv_head, k_pool, v_pool, k_scales,
            v_scales, scale, soft_cap, begin, whole_begin, True, WINDOW, SOFT_CAP, QUANTIZED, KV_HEADS, SLOTS,
            HEAD_DIM, PADDED, KEYS, STAGES)
    largest, total, values = _add_keys(
        largest, total, values, q, positions, row_table, first_key, end_key, kv_head, k_pool, v_pool, k_scales,
        v_scales, scale, soft_cap, whole_begin, whole_end, False, WINDOW, SOFT_CAP, QUANTIZED, KV_HEADS, SLOTS,
        HEAD_DIM, PADDED, KEYS, STAGES)
    return _add_keys(
        largest, total, values, q, positions, row_table, first_key, end_key, kv_head, k_pool, v_pool, k_scales,
        v_scales, scale, soft_cap, whole_end, end, True, WINDOW, SOFT_CAP, QUANTIZED, KV_HEADS, SLOTS,
        HEAD_DIM, PADDED, KEYS, STAGES)


@triton.jit
def _merge(largest, total, values, other_largest, other_total, other_values, factors_shape: tl.constexpr):
    """Add the sums over some keys to those over earlier ones."""
    new_largest = tl.maximum(largest, other_largest)
    factor, other_factor = tl.exp2(largest - new_largest), tl.exp2(other_largest - new_largest)
    total = total * factor + other_total * other_factor
    if factors_shape:
        factor, other_factor = factor[:, None], other_factor[:, None]
    return new_largest, total, values * factor + other_values * other_factor


@triton.jit
def ragged_attention(
    q, k_pool, v_pool, k_scales, v_scales, sinks, tables, query_start, lengths, tile_rows, tile_tokens, out, lse,
    scale, soft_cap,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, QUANTIZED: tl.constexpr,
    SINKS: tl.constexpr, LSE: tl.constexpr, KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr,
):
    """Rows with several queries: grid (tiles, kv heads). Of a tile: its row of the step, or -1, and first token.

    SPLIT: keys in a split, or 0 for one sum over all keys.
    """
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # a row's last tiles have the most keys: first
    kv_head = tl.program_id(1)
    row = tl.load(tile_rows + tile)
    if row < 0:
        return
    TOKENS: tl.constexpr = ROWS // GROUP
    token = tl.load(tile_tokens + tile)
    row_end = tl.load(query_start + row + 1)
    offset = tl.load(lengths + row) - row_end  # of a token's position in the context from its place in q
    stop = tl.minimum(token + TOKENS, row_end)
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED)
    tokens = token + lanes // GROUP
    heads = kv_head * GROUP + lanes % GROUP
    mine = (lanes // GROUP < TOKENS) & (tokens < stop)
    positions = tl.where(mine, tokens + offset, -1)
    places = tokens * (KV_HEADS * GROUP) + heads
    at = places.to(tl.int64)[:, None] * HEAD_DIM + dims[None, :]
    held = mine[:, None] & (dims < HEAD_DIM)[None, :]
    queries = tl.load(q + at, mask=held, other=0)

    first_position, last_position = token + offset, stop - 1 + offset
    first_key = tl.maximum(first_position - WINDOW + 1, 0) if WINDOW > 0 else 0
    begin, end = first_key // KEYS, tl.cdiv(last_position + 1, KEYS)
    row_table = tables + row * WIDTH
    largest = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    values = tl.zeros((ROWS, PADDED), tl.float32)
    if SINKS:
        largest = tl.load(sinks + heads) * LOG2_E
        total = tl.full((ROWS,), 1.0, tl.float32)
    if SPLIT == 0:
        other_largest, other_total, other_values = _attend(
            queries, positions, first_position, last_position, row_table, first_key, last_position + 1, kv_head, begin,
            end, k_pool, v_pool, k_scales, v_scales, scale, soft_cap, WINDOW, SOFT_CAP, QUANTIZED, KV_HEADS, SLOTS,
            HEAD_DIM, PADDED, ROWS, KEYS, STAGES)
        if SINKS:
            largest, total, values = _merge(
                largest, total, values, other_largest, other_total, other_values, True)
        else:
            largest, total, values = other_largest, other_total, other_values
    else:
        TILES: tl.constexpr = SPLIT // KEYS
        for split in range(begin // TILES, tl.cdiv(end, TILES)):
            other_largest, other_total, other_values = _attend(
                queries, positions, first_position, last_position, row_table, first_key, last_position + 1, kv_head,
                tl.maximum(begin, split * TILES), tl.minimum(end, (split + 1) * TILES),
                k_pool, v_pool, k_scales, v_scales, scale, soft_cap, WINDOW, SOFT_CAP, QUANTIZED, KV_HEADS, SLOTS,
                HEAD_DIM, PADDED, ROWS, KEYS, STAGES)
            largest, total, values = _merge(
                largest, total, values, other_largest, other_total, other_values, True)
    tl.store(out + at, (values / total[:, None]).to(out.dtype.element_ty), mask=held)
    if LSE:
        tl.store(lse + places, largest * LN_2 + tl.log(total), mask=mine)


@triton.jit
def decode_attention(
    q, k_pool, v_pool, k_scales, v_scales, tables, query_start, lengths, part_values, part_sums, scale, soft_cap,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, QUANTIZED: tl.constexpr,
    KV_HEADS: tl.constexpr, SLOTS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
    KEYS: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
):
    """One split of the keys of a row with one query: grid (kv heads, SPLITS, rows).

    SPLITS: how many a row's keys can be in; the first is that of the oldest key that the query sees.
    part_values: float32 [R, SPLITS, N, H]. part_sums: float32 [R, SPLITS, N, 2], largest logit and sum of weights.
    """
    kv_head, place, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    token = tl.load(query_start + row)
    length = tl.load(lengths + row)
    if tl.load(query_start + row + 1) - token != 1:
        return
    TILES: tl.constexpr = SPLIT // KEYS
    position = length - 1
    first_key = tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0
    split = first_key // SPLIT + place
    if split * SPLIT >= length:
        return
    lanes = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED)
    heads = kv_head * GROUP + lanes
    held = (lanes < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    at = (token * (KV_HEADS * GROUP) + heads).to(tl.int64)[:, None] * HEAD_DIM + dims[None, :]
    queries = tl.load(q + at, mask=held, other=0)
    positions = tl.where(lanes < GROUP, position, -1)
    begin, end = first_key // KEYS, tl.cdiv(length, KEYS)
    largest, total, values = _attend(
        queries, positions, position, position, tables + row * WIDTH, first_key, length, kv_head,
        tl.maximum(begin, split * TILES), tl.minimum(end, (split + 1) * TILES),
        k_pool, v_pool, k_scales, v_scales, scale, soft_cap, WINDOW, SOFT_CAP, QUANTIZED, KV_HEADS, SLOTS,
        HEAD_DIM, PADDED, ROWS, KEYS, STAGES)
    part = (row.to(tl.int64) * SPLITS + place) * (KV_HEADS * GROUP) + heads
    tl.store(part_values + part[:, None] * HEAD_DIM + dims[None, :], values, mask=held)
    tl.store(part_sums + part * 2, largest, mask=lanes < GROUP)
    tl.store(part_sums + part * 2 + 1, total, mask=lanes < GROUP)


@triton.jit
def combine_splits(
    part_values, part_sums, sinks, query_start, lengths, out, lse,
    HEADS: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, LSE: tl.constexpr, HEAD_DIM: tl.constexpr,
    PADDED: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr,
):
    """Add up the splits of a row's query, from the first to the last: grid (heads, rows)."""
    head, row = tl.program_id(0), tl.program_id(1)
    token = tl.load(query_start + row)
    length = tl.load(lengths + row)
    if tl.load(query_start + row + 1) - token != 1:
        return
    first_key = tl.maximum(length - WINDOW, 0) if WINDOW > 0 else 0
    count = tl.cdiv(length, SPLIT) - first_key // SPLIT
    dims = tl.arange(0, PADDED)
    # All numbers of a query are vectors over its dims, of which those of the softmax hold one number PADDED times.
    largest = tl.full((PADDED,), LOWEST, tl.float32)
    total = tl.zeros((PADDED,), tl.float32)
    values = tl.zeros((PADDED,), tl.float32)
    if SINKS:
        largest = tl.zeros((PADDED,), tl.float32) + tl.load(sinks + head) * LOG2_E
        total += 1
    for place in range(count):
        part = (row.to(tl.int64) * SPLITS + place) * HEADS + head
        other_values = tl.load(part_values + part * HEAD_DIM + dims, mask=dims < HEAD_DIM, other=0)
        largest, total, values = _merge(
            largest, total, values, tl.load(part_sums + part * 2), tl.load(part_sums + part * 2 + 1), other_values,
            False)
    at = token * HEADS + head
    tl.store(out + at.to(tl.int64) * HEAD_DIM + dims, (values / total).to(out.dtype.element_ty), mask=dims < HEAD_DIM)
    if LSE:
        tl.store(lse + at + 0 * dims, largest * LN_2 + tl.log(total), mask=dims == 0)
