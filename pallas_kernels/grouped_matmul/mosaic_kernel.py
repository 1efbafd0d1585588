"""Products of groups of rows with weights of their own, in Mosaic GPU for Hopper: TMA, wgmma, a producer.

As many thread blocks as the GPU has multiprocessors take tiles of the result in turn (`mosaic_work`). In each a
producer copies rows and weights into a ring, and runs ahead across tiles; two consumers multiply, one below the other
or side by side. A tile at the border of two groups is computed for both, and each writes its own rows. Of the rows
past the last group no product is formed: they are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from pallas_kernels.grouped_matmul.mosaic_work import FIELDS, GRANULE, cut_into_tiles
from pallas_kernels.mosaic_gpu.tiles import MatmulTiles
from pallas_kernels.mosaic_gpu.wgmma import sum_of_products

ROWS = 64
"""Of a consumer."""


@dataclass(frozen=True)
class _Plan:
    """columns: of a consumer. steps: of a sum."""

    tiles: MatmulTiles
    num_groups: int
    outputs: int
    columns: int
    steps: int
    num_blocks: int

    @property
    def consumers(self) -> int:
        return self.tiles.down * self.tiles.across

    @property
    def block_columns(self) -> int:
        return self.columns * self.tiles.across

    def stage(self, number: Array) -> Array:
        return lax.rem(number, jnp.int32(self.tiles.stages))


class _Refs(NamedTuple):
    """In global memory: rows, weights, tiles, their number and results. In shared memory: rings of rows and of weights,
    results to be written; and barriers of stages, filled and free."""

    x: Any
    weights: Any
    fields: Any
    count: Any
    out: Any
    x_ring: Any
    w_ring: Any
    staged: Any
    full: Any
    free: Any


class _Tile(NamedTuple):
    """Of the result: see FIELDS; its first column; its steps, none past the last group; and those before them."""

    group: Array
    first: Array
    begin: Array
    end: Array
    column: Array
    steps: Array
    so_far: Array


def columns_of(outputs: int, tiles: MatmulTiles, itemsize: int) -> int | None:
    """Columns of a consumer: the most that deal out the outputs evenly, or ``None``.

    In shared memory a row of results is a multiple of 128 bytes, where copies by TMA have to begin; and results in
    float32, where consumers have many columns, must leave room for the rings.
    """
    unit = 128 // itemsize
    most = tiles.columns // (2 if itemsize == 4 and tiles.across == 1 else 1) // tiles.across
    return next((size for size in range(most, 0, -unit) if outputs % (size * tiles.across) == 0), None)


def multiply(
    x: Float[Array, "T I"],
    weights: Float[Array, "E O I"],
    group_sizes: Int32[Array, " E"],
    out_dtype: Any,
    *,
    tiles: MatmulTiles,
    num_multiprocessors: int,
    interpret: Any,
) -> Float[Array, "T O"]:
    """The product of each row with its group's weights. I is a multiple of ``tiles.inner``; for O see `columns_of`.

    Rows that no multiple of 8 are, or fewer than a tile's, are copied to where they are.
    """
    num_rows, inner = x.shape
    num_groups, outputs, _ = weights.shape
    rows = ROWS * tiles.down
    padded = max(rows, -(-num_rows // GRANULE) * GRANULE)
    columns = columns_of(outputs, tiles, jnp.dtype(out_dtype).itemsize)
    if columns is None:
        raise ValueError(f"outputs={outputs} are no multiple of what {tiles} takes")
    plan = _Plan(tiles, num_groups, outputs, columns, inner // tiles.inner, num_multiprocessors)
    fields, count = cut_into_tiles(group_sizes, num_rows, padded, rows)
    return plgpu.kernel(
        partial(_body, plan=plan),
        out_type=jax.ShapeDtypeStruct((num_rows, outputs), out_dtype),
        scratch_types=[
            plgpu.SMEM((tiles.stages, tiles.down, ROWS, tiles.inner), x.dtype),
            plgpu.SMEM((tiles.stages, tiles.across, plan.columns, tiles.inner), weights.dtype),
            plgpu.SMEM((plan.consumers, ROWS, plan.columns), out_dtype),
            plgpu.Barrier(num_arrivals=tiles.down + tiles.across, num_barriers=tiles.stages),
            plgpu.Barrier(num_arrivals=plan.consumers, num_barriers=tiles.stages),
        ],
        grid=(num_multiprocessors,),
        grid_names=("block",),
        num_threads=plan.consumers + 1,
        thread_name="warpgroup",
        kernel_name="grouped_matmul",
        compiler_params=plgpu.CompilerParams(reduction_scratch_bytes=0),
        interpret=interpret,
    )(jnp.pad(x, ((0, padded - num_rows), (0, 0))), weights, fields, count)


def _body(*all_refs: Any, plan: _Plan) -> None:
    """The kernel, by warpgroup."""
    refs = _Refs(*all_refs)
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup < plan.consumers)
    def _() -> None:
        plgpu.set_max_registers(232, action="increase")
        _for_each_tile(plan, refs, partial(_consume, plan, refs, warpgroup))

    @pl.when(warpgroup == plan.consumers)
    def _() -> None:
        plgpu.set_max_registers(40, action="decrease")
        _for_each_tile(plan, refs, partial(_produce, plan, refs))


def _for_each_tile(plan: _Plan, refs: _Refs, run: Any) -> None:
    """Call ``run`` for this thread block's tiles of the result; those of a tile of rows come one after the other."""
    across = jnp.int32(plan.outputs // plan.block_columns)
    block = lax.axis_index("block")
    mine = jnp.maximum(refs.count[0] * across - block + (plan.num_blocks - 1), 0) // plan.num_blocks

    def one(index: Array, so_far: Array) -> Array:
        work = block + index * plan.num_blocks
        number = lax.div(work, across)
        own = {name: refs.fields[number, field] for field, name in enumerate(FIELDS)}
        steps = jnp.where(own["group"] < plan.num_groups, plan.steps, 0)
        run(_Tile(**own, column=lax.rem(work, across) * plan.block_columns, steps=steps, so_far=so_far))
        return so_far + steps

    lax.fori_loop(0, mine, one, jnp.int32(0))


def _produce(plan: _Plan, refs: _Refs, tile: _Tile) -> None:
    tiles = plan.tiles

    @pl.loop(0, tile.steps)
    def _(step: Array) -> None:
        number = tile.so_far + step
        stage = plan.stage(number)

        @pl.when(number >= tiles.stages)
        def _() -> None:
            plgpu.barrier_wait(refs.free.at[stage])

        inner = pl.ds(step * tiles.inner, tiles.inner)
        for part in range(tiles.down):
            rows = pl.ds(pl.multiple_of(tile.first + part * ROWS, GRANULE), ROWS)
            plgpu.copy_gmem_to_smem(refs.x.at[rows, inner], refs.x_ring.at[stage, part], refs.full.at[stage])
        for part in range(tiles.across):
            columns = pl.ds(pl.multiple_of(tile.column + part * plan.columns, GRANULE), plan.columns)
            plgpu.copy_gmem_to_smem(
                refs.weights.at[tile.group, columns, inner], refs.w_ring.at[stage, part], refs.full.at[stage])


def _consume(plan: _Plan, refs: _Refs, warpgroup: Array, tile: _Tile) -> None:
    across = jnp.int32(plan.tiles.across)
    below, beside = lax.div(warpgroup, across), lax.rem(warpgroup, across)

    def operands(step: Array) -> tuple[Any, Any]:
        stage = plan.stage(tile.so_far + step)
        plgpu.barrier_wait(refs.full.at[stage])
        return refs.x_ring.at[stage, below], refs.w_ring.at[stage, beside].transpose((1, 0))

    def release(step: Array) -> None:
        plgpu.barrier_arrive(refs.free.at[plan.stage(tile.so_far + step)])

    sums = sum_of_products(tile.steps, (ROWS, plan.columns), operands, release)
    staged = refs.staged.at[warpgroup]
    plgpu.store(staged, sums.astype(staged.dtype), optimized=False)  # not swizzled: rows go out one by one
    plgpu.commit_smem()
    columns = pl.ds(tile.column + beside * plan.columns, plan.columns)
    first = tile.first + below * ROWS
    begin = jnp.clip(tile.begin - below * ROWS, 0, ROWS)
    end = jnp.clip(tile.end - below * ROWS, 0, ROWS)
    whole = end - begin == ROWS

    @pl.when(whole)
    def _() -> None:
        plgpu.copy_smem_to_gmem(staged, refs.out.at[pl.ds(first, ROWS), columns])

    @pl.when(jnp.logical_not(whole))
    def _() -> None:
        @pl.loop(begin, end)
        def _(row: Array) -> None:
            plgpu.copy_smem_to_gmem(staged.at[pl.ds(row, 1)], refs.out.at[pl.ds(first + row, 1), columns])

    plgpu.wait_smem_to_gmem(0)
