"""KV write in Triton: alone, and with the rotary embedding before it.

A program holds one head of TOKENS tokens. Tokens of padding, whose slots are in block 0, are not written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pallas_kernels.scaled_pool import SMALLEST as _SMALLEST

SMALLEST = tl.constexpr(_SMALLEST)
ROUNDER = tl.constexpr(1.5 * 2**23)
"""Added to a float32 of at most 2^22 and subtracted again, it rounds to a whole number, ties to even."""


@triton.jit
def _places(slots, tokens, TOKENS: tl.constexpr, head, HEADS: tl.constexpr, SLOTS: tl.constexpr):
    """Where the tokens' heads lie in a pool of [P, K, S] heads, and which are written."""
    slot = tl.load(slots + tokens, mask=tokens < TOKENS, other=0)
    return ((slot // SLOTS).to(tl.int64) * HEADS + head) * SLOTS + slot % SLOTS, slot >= SLOTS


@triton.jit
def _scale(largest, finite, LARGEST: tl.constexpr):
    """Factor to a pool's numbers and scale of heads with these largest numbers (`scaled_pool.quantize_heads`)."""
    some = largest >= SMALLEST
    factor = tl.where(finite & some, tl.div_rn(LARGEST * 1.0, tl.where(some, largest, 1.0)), 0.0)
    return factor, tl.where(finite, tl.where(some, largest * (1 / LARGEST), 0.0), float("nan"))


@triton.jit
def _write(x, pool, scales, places, written, dims, DIM: tl.constexpr, LARGEST: tl.constexpr):
    """Heads into a pool; with LARGEST, what their largest numbers become, as that and a scale."""
    at = places[:, None] * DIM + dims[None, :]
    held = written[:, None] & (dims < DIM)[None, :]
    if LARGEST > 0:
        wide = x.to(tl.float32)
        finite = tl.min((tl.abs(wide) < float("inf")).to(tl.int32), 1) == 1
        factor, scale = _scale(tl.max(tl.where(finite[:, None], tl.abs(wide), 0.0), 1), finite, LARGEST)
        numbers = wide * factor[:, None]
        if pool.dtype.element_ty == tl.int8:
            numbers = numbers + ROUNDER - ROUNDER
        numbers = tl.where(finite[:, None], numbers, 0.0)
        tl.store(pool + at, numbers.to(pool.dtype.element_ty), mask=held)
        tl.store(scales + places, scale, mask=written)
    else:
        tl.store(pool + at, x, mask=held)


@triton.jit
def write_heads(
    k, v, slots, k_pool, v_pool, k_scales, v_scales,
    NUM_TOKENS: tl.constexpr, HEADS: tl.constexpr, SLOTS: tl.constexpr, K_DIM: tl.constexpr, V_DIM: tl.constexpr,
    K_PADDED: tl.constexpr, V_PADDED: tl.constexpr, LARGEST: tl.constexpr, TOKENS: tl.constexpr,
):
    """Keys [T, K, K_DIM] and values [T, K, V_DIM] into their pools: grid (tiles of tokens, kv heads, 2)."""
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    places, written = _places(slots, tokens, NUM_TOKENS, head, HEADS, SLOTS)
    rows = (tokens.to(tl.int64) * HEADS + head)[:, None]
    if tl.program_id(2) == 0:
        dims = tl.arange(0, K_PADDED)
        x = tl.load(k + rows * K_DIM + dims[None, :], mask=written[:, None] & (dims < K_DIM)[None, :], other=0)
        _write(x, k_pool, k_scales, places, written, dims, K_DIM, LARGEST)
    else:
        dims = tl.arange(0, V_PADDED)
        x = tl.load(v + rows * V_DIM + dims[None, :], mask=written[:, None] & (dims < V_DIM)[None, :], other=0)
        _write(x, v_pool, v_scales, places, written, dims, V_DIM, LARGEST)


@triton.jit
def rotate_and_write_heads(
    qkv, cos, sin, slots, k_pool, v_pool, k_scales, v_scales, q,
    NUM_TOKENS: tl.constexpr, QUERY_HEADS: tl.constexpr, HEADS: tl.constexpr, SLOTS: tl.constexpr,
    DIM: tl.constexpr, PADDED: tl.constexpr, LARGEST: tl.constexpr, TOKENS: tl.constexpr,
):
    """Heads of queries, keys and values [T, N + 2 K, DIM], the first two rotated: grid (tiles of tokens, N + 2 K).

    PADDED: half of a head's dims, as a power of two.
    """
    HALF: tl.constexpr = DIM // 2
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    dims = tl.arange(0, 2 * PADDED)
    pair = dims % PADDED
    inside = (tokens < NUM_TOKENS)[:, None] & (pair < HALF)[None, :]
    lane = tl.where(dims < PADDED, pair, HALF + pair)
    partner = tl.where(dims < PADDED, HALF + pair, pair)
    rows = qkv + (tokens.to(tl.int64) * (QUERY_HEADS + 2 * HEADS) + head)[:, None] * DIM
    x = tl.load(rows + lane[None, :], mask=inside, other=0)
    if head < QUERY_HEADS + HEADS:
        other = tl.load(rows + partner[None, :], mask=inside, other=0)
        angles = tokens[:, None] * HALF + pair[None, :]
        c = tl.load(cos + angles, mask=inside, other=0)
        s = tl.load(sin + angles, mask=inside, other=0)
        s = tl.where((dims < PADDED)[None, :], -s, s)
        x = (x.to(tl.float32) * c + other.to(tl.float32) * s).to(x.dtype)
    if head < QUERY_HEADS:
        at = q + (tokens.to(tl.int64) * QUERY_HEADS + head)[:, None] * DIM
        tl.store(at + lane[None, :], x, mask=inside)
    else:
        kv_head = (head - QUERY_HEADS) % HEADS
        places, written = _places(slots, tokens, NUM_TOKENS, kv_head, HEADS, SLOTS)
        lane = tl.where(pair < HALF, lane, DIM)  # dims past a half are not written
        if head < QUERY_HEADS + HEADS:
            _write(x, k_pool, k_scales, places, written, lane, DIM, LARGEST)
        else:
            _write(x, v_pool, v_scales, places, written, lane, DIM, LARGEST)
