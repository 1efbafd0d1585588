"""Keys and values in bytes in the Mosaic GPU attention kernel: a tile becomes 16-bit numbers in shared memory.

`wgmma` takes both of its operands in one dtype, and the one on the right from shared memory. So the consumers decode a
tile together, each some pieces of it, and meet at a barrier before its product. A piece of keys is decoded over the
previous tile's only when all have met over its values, that is, after all products with those keys; and the other way
round. Scales are not part of the numbers: they are factors on scores and on weights, in float32.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.paged_attention.mosaic_plan import Item, Plan, Refs

ROWS, COLUMNS = 64, 64
"""Of a piece."""


def decode_keys(plan: Plan, refs: Refs, warpgroup: Array, stage: Array) -> Float[Array, " I"]:
    """A tile of keys as numbers of the queries' dtype, in ``refs.k_tile``; gives their scales."""
    return _decode(
        plan, refs.k_ring.at[stage], refs.scale_rings.at[0, stage], refs.k_tile, refs.k_ready, warpgroup)


def decode_values(
    plan: Plan, refs: Refs, warpgroup: Array, item: Item, begin: Array, stage: Array
) -> Float[Array, " I"]:
    """A tile of values, from position ``begin`` on, as bfloat16 in ``refs.v_tile``; gives their scales.

    Values of slots that are not the item's are zeros; their scales may be anything.
    """
    return _decode(plan, refs.v_ring.at[stage], refs.scale_rings.at[1, stage], refs.v_tile, refs.v_ready, warpgroup,
                   (item.low - begin, item.high - begin))


def across(scales: Float[Array, " I"], shape: tuple[int, ...]) -> Float[Array, "Q I"]:
    """A number per key, for each query."""
    return lax.broadcast_in_dim(scales, shape, [1])


def _decode(
    plan: Plan, ring: Any, scales: Any, tile: Any, ready: Any, warpgroup: Array,
    inside: tuple[Array, Array] | None = None,
) -> Float[Array, " I"]:
    """inside: the first of the tile's slots to take and the one after the last; by default all."""
    keys, head_dim = tile.shape
    consumers = plan.sizes.tiles.consumers
    pieces = [(row, column) for row in range(0, keys, ROWS) for column in range(0, head_dim, COLUMNS)]
    for number, (row, column) in enumerate(pieces):
        @pl.when(warpgroup == (number + (inside is not None)) % consumers)  # a single piece of values is the other's
        def _(row: int = row, column: int = column) -> None:
            here = pl.ds(row, ROWS), pl.ds(column, COLUMNS)
            numbers = plgpu.load(ring.at[here], layout=plgpu.Layout.WGMMA, optimized=False)
            if numbers.dtype == jnp.float8_e4m3fn:  # Hopper converts it to float16 alone, of which it is a part
                numbers = numbers.astype(jnp.float16).astype(jnp.float32)
            numbers = numbers.astype(tile.dtype)
            if inside is not None:
                at = row + plgpu.broadcasted_iota(jnp.int32, (ROWS, COLUMNS), 0, layout=plgpu.Layout.WGMMA)
                numbers = jnp.where((at >= inside[0]) & (at < inside[1]), numbers, jnp.zeros_like(numbers))
            tile.at[here][...] = numbers

    factors: Array = plgpu.load(scales, layout=plgpu.Layout.WGMMA.reduce(0), optimized=False)
    plgpu.commit_smem()  # of numbers before wgmma reads them, and of what was read before the producer copies over it
    if consumers > 1:
        plgpu.barrier_arrive(ready)
        plgpu.barrier_wait(ready)
    return factors
