"""The producer of the Mosaic GPU attention kernel: it finds blocks in the table and copies them by TMA."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from pallas_kernels.paged_attention.mosaic_plan import Item, Plan, Refs


def produce(plan: Plan, refs: Refs, item: Item, so_far: Array) -> Array:
    """Copy the blocks of an item into the rings; gives the tiles so far, of all items."""
    tiles, size = plan.sizes.tiles, plan.block_size
    first, stop = plan.tiles(item)
    piece = min(size, tiles.keys)

    def one_tile(tile: Array, number: Array) -> Array:
        stage = plan.stage(number)
        blocks = []
        for part in range(tiles.keys // piece):
            begin = tile * tiles.keys + part * piece
            wanted = (begin < item.high) & (begin + piece > item.low)
            at = jnp.where(wanted, lax.div(begin, jnp.int32(size)), lax.div(item.low, jnp.int32(size)))
            blocks.append((wanted, refs.tables[item.row, at], lax.rem(begin, jnp.int32(size))))
        keys, values = [(refs.k_pool, refs.k_ring)], [(refs.v_pool, refs.v_ring)]
        if plan.scaled:
            keys.append((refs.k_scales, refs.scale_rings.at[0]))
            values.append((refs.v_scales, refs.scale_rings.at[1]))
        for copied, full, free in ((keys, refs.k_full, refs.k_free), (values, refs.v_full, refs.v_free)):
            @pl.when(number >= tiles.stages)
            def _(free: Any = free) -> None:
                plgpu.barrier_wait(free.at[stage])

            for part, (wanted, block, offset) in enumerate(blocks):
                @pl.when(wanted)
                def _(copied: Any = copied, full: Any = full, part: int = part, block: Array = block,
                      offset: Array = offset) -> None:
                    for pool, ring in copied:
                        source = pool.at[block, item.head]
                        if piece < size:
                            source = pool.at[block, item.head, pl.ds(pl.multiple_of(offset, piece), piece)]
                        target = ring.at[stage]
                        if piece < tiles.keys:
                            target = ring.at[stage, pl.ds(part * piece, piece)]
                        plgpu.copy_gmem_to_smem(source, target, full.at[stage])

                @pl.when(jnp.logical_not(wanted))
                def _(copied: Any = copied, full: Any = full) -> None:
                    for _ in copied:
                        plgpu.barrier_arrive(full.at[stage])
        return number + 1

    return lax.fori_loop(first, stop, one_tile, so_far)
