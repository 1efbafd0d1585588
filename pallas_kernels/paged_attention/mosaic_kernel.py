"""Ragged paged attention in Mosaic GPU for Hopper: blocks by TMA, products by wgmma, a producer and its consumers.

As many thread blocks as the GPU has multiprocessors take items of work (`mosaic_work`) in turn. The producer, a
warpgroup that copies, looks blocks up in the table and fills a ring of tiles of keys and of values; it runs ahead
across items. Each consumer has 64 packed queries: it multiplies them with a tile of keys, grows its softmax and
multiplies the weights with the values. Positions are walked in tiles from absolute multiples of ``tiles.keys``, and at
multiples of ``tiles.split`` the softmax starts afresh and what it had is merged into a sum in shared memory: what a
decode that is split over thread blocks does by `mosaic_merge`, with the same operations in the same order.

Slots outside an item's positions are not read where whole blocks are, and otherwise masked: their scores become -inf,
their values are set to zero in shared memory, for garbage times a weight of zero may be NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from pallas_kernels.paged_attention.mosaic_consumer import consume
from pallas_kernels.paged_attention.mosaic_plan import Item, Plan, Refs
from pallas_kernels.paged_attention.mosaic_producer import produce
from pallas_kernels.paged_attention.mosaic_softmax import Scores
from pallas_kernels.paged_attention.mosaic_work import ITEM_FIELDS, ROWS_PER_WARPGROUP, Sizes
from pallas_kernels.scaled_pool import Pool, ScaledPool


@dataclass(frozen=True)
class Results:
    """Of whole items, in packed order, and of the items of split rows, by slot: not yet divided by their sums, rows
    ``head * group_rows + g``."""

    out: Float[Array, "K Q H"]
    lse: Float[Array, "K Q"]
    partial_values: Float[Array, "C Z H"]
    partial_largest: Float[Array, "C Z"]
    partial_total: Float[Array, "C Z"]


def attend(
    q: Float[Array, "K Q H"],
    k_pool: Pool,
    v_pool: Pool,
    tables: Int32[Array, "R M"],
    items: Int32[Array, "I 8"],
    num_items: Int32[Array, " 1"],
    positions: Int32[Array, " Q"],
    sinks: Float[Array, "K Q"] | None,
    *,
    sizes: Sizes,
    scores: Scores,
    num_multiprocessors: int,
    interpret: Any,
) -> Results:
    """Run all items; what belongs to no item is left as it was, that is, undefined."""
    scaled = isinstance(k_pool, ScaledPool)
    plan = Plan(sizes, scores, k_pool.shape[2], num_multiprocessors, sinks is not None, scaled, bool(interpret))
    num_kv_heads, packed_rows, head_dim = q.shape
    slots = (max(1, sizes.num_slots), sizes.slot_rows)
    results = plgpu.kernel(
        partial(_body, plan=plan),
        out_type=(
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct((num_kv_heads, packed_rows), jnp.float32),
            jax.ShapeDtypeStruct((*slots, head_dim), jnp.float32),
            jax.ShapeDtypeStruct(slots, jnp.float32),
            jax.ShapeDtypeStruct(slots, jnp.float32),
        ),
        scratch_types=_scratch(plan, q.dtype, k_pool.dtype),
        grid=(num_multiprocessors,),
        grid_names=("block",),
        num_threads=sizes.tiles.consumers + 1,
        thread_name="warpgroup",
        kernel_name="paged_attention",
        compiler_params=plgpu.CompilerParams(approx_math=True, reduction_scratch_bytes=0),
        interpret=interpret,
    )(q, *(pool.values if isinstance(pool, ScaledPool) else pool for pool in (k_pool, v_pool)), tables, items,
      num_items, positions, *([] if sinks is None else [sinks]),
      *(pool.scales for pool in (k_pool, v_pool) if isinstance(pool, ScaledPool)))
    return Results(*results)


def _scratch(plan: Plan, dtype: Any, kept: Any) -> list[Any]:
    """kept: dtype of the pools."""
    tiles, head_dim = plan.sizes.tiles, plan.sizes.head_dim
    rows = (tiles.consumers, ROWS_PER_WARPGROUP)
    pieces = max(1, tiles.keys // plan.block_size) * (2 if plan.scaled else 1)
    scaled = [
        plgpu.SMEM((2, tiles.stages, tiles.keys), jnp.float32),
        plgpu.SMEM((tiles.keys, head_dim), dtype),
        plgpu.SMEM((tiles.keys, head_dim), jnp.bfloat16),
        plgpu.Barrier(num_arrivals=tiles.consumers),
        plgpu.Barrier(num_arrivals=tiles.consumers),
    ]
    return [
        plgpu.SMEM((*rows, head_dim), dtype),
        plgpu.SMEM((*rows, head_dim), jnp.float32),
        plgpu.SMEM((2, *rows), jnp.float32),
        plgpu.SMEM((tiles.stages, tiles.keys, head_dim), kept),
        plgpu.SMEM((tiles.stages, tiles.keys, head_dim), kept),
        plgpu.Barrier(num_barriers=tiles.consumers),
        plgpu.Barrier(num_arrivals=pieces, num_barriers=tiles.stages),
        plgpu.Barrier(num_arrivals=pieces, num_barriers=tiles.stages),
        plgpu.Barrier(num_arrivals=tiles.consumers, num_barriers=tiles.stages),
        plgpu.Barrier(num_arrivals=tiles.consumers, num_barriers=tiles.stages),
        plgpu.Barrier(num_arrivals=tiles.consumers),
        *(scaled if plan.scaled else ()),
    ]


def _body(*all_refs: Any, plan: Plan) -> None:
    """The kernel, by warpgroup."""
    warpgroup = lax.axis_index("warpgroup")
    consumers = plan.sizes.tiles.consumers
    refs = Refs.of(all_refs, plan)

    @pl.when(warpgroup < consumers)
    def _() -> None:
        if consumers == 2:
            plgpu.set_max_registers(232, action="increase")
        _for_each_item(plan, refs, partial(consume, plan, refs, warpgroup))

    @pl.when(warpgroup == consumers)
    def _() -> None:
        if consumers == 2:
            plgpu.set_max_registers(40, action="decrease")
        _for_each_item(plan, refs, partial(produce, plan, refs))


def _for_each_item(plan: Plan, refs: Refs, run: Any) -> None:
    """Call ``run(item, tiles so far)`` for this thread block's items; it gives the tiles so far."""
    heads = jnp.int32(plan.sizes.num_kv_heads)
    block = lax.axis_index("block")
    total = refs.num_items[0] * heads
    mine = jnp.maximum(total - block + (plan.num_blocks - 1), 0) // plan.num_blocks

    def one(index: Array, so_far: Array) -> Array:
        work = block + index * plan.num_blocks
        number = lax.div(work, heads)
        fields = {name: refs.items[number, field] for field, name in enumerate(ITEM_FIELDS)}
        return run(Item(**fields, head=lax.rem(work, heads)), so_far)

    lax.fori_loop(0, mine, one, jnp.int32(0))
