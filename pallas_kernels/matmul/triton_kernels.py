"""Products with weights [O, I] in Triton: of all rows with one, and of groups of rows each with its own.

A program computes ROWS x COLUMNS results. Sizes of tiles do not depend on the number of rows, and a result's products
are added in order of I in steps of INNER: a row has the same bits in any company.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _multiply(
    x, weight, rows, inside, columns, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr,
):
    """Float32 sums [ROWS, COLUMNS] of rows of x [T, WIDTH] and columns of a weight [OUTPUTS, WIDTH]."""
    lanes = tl.arange(0, INNER)
    x_at = x + rows.to(tl.int64)[:, None] * WIDTH + lanes[None, :]
    w_at = weight + columns.to(tl.int64)[None, :] * WIDTH + lanes[:, None]
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in tl.range(0, tl.cdiv(WIDTH, INNER), num_stages=STAGES):
        begin = step * INNER
        if WIDTH % INNER == 0:
            left = tl.load(x_at + begin, mask=inside[:, None], other=0.0)
            right = tl.load(w_at + begin, mask=(columns < OUTPUTS)[None, :], other=0.0)
        else:
            within = lanes < WIDTH - begin
            left = tl.load(x_at + begin, mask=inside[:, None] & within[None, :], other=0.0)
            right = tl.load(w_at + begin, mask=(columns < OUTPUTS)[None, :] & within[:, None], other=0.0)
        sums = tl.dot(left, right.to(left.dtype), sums)
    return sums


@triton.jit
def multiply_rows(
    x, weight, out,
    NUM_ROWS: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr, STAGES: tl.constexpr,
):
    """All rows: grid (tiles of rows, tiles of columns)."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = rows < NUM_ROWS
    sums = _multiply(x, weight, rows, inside, columns, WIDTH, OUTPUTS, ROWS, COLUMNS, INNER, STAGES)
    at = out + rows.to(tl.int64)[:, None] * OUTPUTS + columns[None, :]
    tl.store(at, sums.to(out.dtype.element_ty), mask=inside[:, None] & (columns < OUTPUTS)[None, :])


@triton.jit
def multiply_groups(
    x, weights, scales, ends, tile_groups, tile_rows, out,
    WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, SCALED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    INNER: tl.constexpr, STAGES: tl.constexpr,
):
    """Groups of rows: grid (tiles of rows, tiles of columns). Of a tile: its group, or -1, and first row.

    ends: the row after a group's last. scales: float32 [E, OUTPUTS], factors on the outputs.
    """
    group = tl.load(tile_groups + tl.program_id(0))
    if group < 0:
        return
    rows = tl.load(tile_rows + tl.program_id(0)) + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = rows < tl.load(ends + group)
    weight = weights + group.to(tl.int64) * (OUTPUTS * WIDTH)
    sums = _multiply(x, weight, rows, inside, columns, WIDTH, OUTPUTS, ROWS, COLUMNS, INNER, STAGES)
    if SCALED:
        sums *= tl.load(scales + group * OUTPUTS + columns, mask=columns < OUTPUTS, other=0.0)[None, :]
    at = out + rows.to(tl.int64)[:, None] * OUTPUTS + columns[None, :]
    tl.store(at, sums.to(out.dtype.element_ty), mask=inside[:, None] & (columns < OUTPUTS)[None, :])
