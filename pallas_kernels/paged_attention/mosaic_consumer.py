"""A consumer of the Mosaic GPU attention kernel: 64 queries, their softmax, and the sum of values."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from pallas_kernels.mosaic_gpu.wgmma import add_product, product
from pallas_kernels.paged_attention.mosaic_bytes import across, decode_keys, decode_values
from pallas_kernels.paged_attention.mosaic_plan import Item, Plan, Refs
from pallas_kernels.paged_attention.mosaic_softmax import finish, merge, merge_sums, reference, whole, wide
from pallas_kernels.paged_attention.mosaic_work import GRANULE, ROWS_PER_WARPGROUP

State = tuple[Array, Array, Array]

COLUMNS = 64
"""Of values that are handled at a time beside the accumulator, which may leave no registers for more."""


def consume(plan: Plan, refs: Refs, warpgroup: Array, item: Item, so_far: Array) -> Array:
    """Attend from one warpgroup's queries of an item; gives the tiles so far, of all items."""
    first, stop = plan.tiles(item)
    mine = warpgroup * ROWS_PER_WARPGROUP
    queries = refs.q_tiles.at[warpgroup]
    active = mine < item.num_rows

    @pl.when(active)
    def _() -> None:
        packed = pl.ds(pl.multiple_of(item.packed + mine, GRANULE), ROWS_PER_WARPGROUP)
        plgpu.copy_gmem_to_smem(refs.q.at[item.head, packed], queries, refs.q_full.at[warpgroup])
        plgpu.barrier_wait(refs.q_full.at[warpgroup])
        positions = plgpu.load(refs.positions.at[packed], optimized=False)
        largest, total = _walk(plan, refs, warpgroup, item, positions, so_far)
        _store(plan, refs, warpgroup, item, largest, total)

    @pl.when(jnp.logical_not(active))
    def _() -> None:
        lax.fori_loop(first, stop, partial(_skip_tile, plan, refs, warpgroup, item, so_far - first), None)

    return so_far + (stop - first)


def _walk(
    plan: Plan, refs: Refs, warpgroup: Array, item: Item, positions: Array, so_far: Array
) -> tuple[Array, Array]:
    """Attend to all tiles of an item; leaves the sum of values in shared memory."""
    tiles, head_dim = plan.sizes.tiles, plan.sizes.head_dim
    first, stop = plan.tiles(item)
    values = refs.values.at[warpgroup]
    split = jnp.int32(tiles.split)
    per_split = tiles.split // tiles.keys
    first_split = lax.div(item.low, split)

    def empty() -> tuple[Array, Array]:
        return jnp.full((ROWS_PER_WARPGROUP,), -jnp.inf), jnp.zeros((ROWS_PER_WARPGROUP,))

    def one_split(number: Array, sums: tuple[Array, Array]) -> tuple[Array, Array]:
        begin = jnp.maximum(first, number * per_split)
        end = jnp.minimum(stop, (number + 1) * per_split)
        state = *empty(), jnp.zeros((ROWS_PER_WARPGROUP, head_dim))
        step = partial(_attend_tile, plan, refs, warpgroup, item, positions, so_far - first)
        largest, total, weighted = lax.fori_loop(begin, end, step, state)

        @pl.when(number == first_split)
        def _() -> None:
            values[...] = weighted

        @pl.when(number > first_split)
        def _() -> None:
            for column in range(0, head_dim, COLUMNS):
                part = values.at[:, pl.ds(column, COLUMNS)]
                mine = lax.slice(weighted, (0, column), (ROWS_PER_WARPGROUP, column + COLUMNS))
                part[...] = merge((*sums, part[...]), (largest, total, mine))[2]

        return merge_sums(sums, (largest, total))

    return lax.fori_loop(first_split, lax.div(item.high + (split - 1), split), one_split, empty())


def _attend_tile(
    plan: Plan, refs: Refs, warpgroup: Array, item: Item, positions: Array, number_at_zero: Array, tile: Array,
    state: State,
) -> State:
    largest, total, values = state
    keys = plan.sizes.tiles.keys
    stage = plan.stage(number_at_zero + tile)
    begin = tile * keys

    plgpu.barrier_wait(refs.k_full.at[stage])
    if plan.scaled:
        scales = decode_keys(plan, refs, warpgroup, stage)
        plgpu.barrier_arrive(refs.k_free.at[stage])
        products = product(refs.q_tiles.at[warpgroup], refs.k_tile.transpose((1, 0)))
        products *= across(scales, products.shape)
    else:
        products = product(refs.q_tiles.at[warpgroup], refs.k_ring.at[stage].transpose((1, 0)))
        plgpu.barrier_arrive(refs.k_free.at[stage])
    logits = plan.scores.of(products)

    hidden = (begin + (keys - 1) > item.position) | (begin < item.low)
    if plan.scores.window is not None:
        hidden |= begin < item.last - (plan.scores.window - 1)

    def hide(logits: Array) -> Array:
        at = begin + plgpu.broadcasted_iota(jnp.int32, logits.shape, 1, layout=plgpu.Layout.WGMMA)
        query = wide(positions, logits.shape)
        visible = (at <= query) & (at >= item.low) & (at < item.high)
        if plan.scores.window is not None:
            visible &= at > query - plan.scores.window
        return jnp.where(visible, logits, -jnp.inf)

    logits = lax.cond(hidden, hide, lambda logits: logits, logits)
    new_largest = jnp.maximum(largest, whole(jnp.max(logits, axis=1)))
    relative = reference(new_largest)
    weights = jnp.exp2(logits - wide(relative, logits.shape))
    rescale = jnp.exp2(largest - relative)
    total = total * rescale + jnp.sum(weights, axis=1)
    values *= wide(rescale, values.shape)
    if plan.scaled:
        plgpu.barrier_wait(refs.v_full.at[stage])
        scales = decode_values(plan, refs, warpgroup, item, begin, stage)
        plgpu.barrier_arrive(refs.v_free.at[stage])
        at = begin + plgpu.broadcasted_iota(jnp.int32, weights.shape, 1, layout=plgpu.Layout.WGMMA)
        factors = jnp.where((at >= item.low) & (at < item.high), across(scales, weights.shape), 0.0)
        weights = (weights * factors).astype(refs.v_tile.dtype)
        return new_largest, total, add_product(values, weights, refs.v_tile, interpret=plan.interpret)
    weights = weights.astype(refs.v_ring.dtype)
    _await_values(plan, refs, warpgroup, item, tile, stage)
    values = add_product(values, weights, refs.v_ring.at[stage], interpret=plan.interpret)
    plgpu.barrier_arrive(refs.v_free.at[stage])
    return new_largest, total, values


def _skip_tile(
    plan: Plan, refs: Refs, warpgroup: Array, item: Item, number_at_zero: Array, tile: Array, nothing: None
) -> None:
    """What a consumer without queries owes the others."""
    stage = plan.stage(number_at_zero + tile)
    plgpu.barrier_wait(refs.k_full.at[stage])
    if plan.scaled:
        decode_keys(plan, refs, warpgroup, stage)
    plgpu.barrier_arrive(refs.k_free.at[stage])
    if plan.scaled:
        plgpu.barrier_wait(refs.v_full.at[stage])
        decode_values(plan, refs, warpgroup, item, tile * plan.sizes.tiles.keys, stage)
    else:
        _await_values(plan, refs, warpgroup, item, tile, stage)
    plgpu.barrier_arrive(refs.v_free.at[stage])


def _await_values(plan: Plan, refs: Refs, warpgroup: Array, item: Item, tile: Array, stage: Array) -> None:
    """Wait for a tile of values; in the first and the last of an item, zero what is not the item's."""
    tiles = plan.sizes.tiles
    plgpu.barrier_wait(refs.v_full.at[stage])
    begin = tile * tiles.keys

    @pl.when((begin < item.low) | (begin + tiles.keys > item.high))
    def _() -> None:
        for part in range(tiles.keys // ROWS_PER_WARPGROUP):
            @pl.when(warpgroup == part % tiles.consumers)
            def _(part: int = part) -> None:
                rows = pl.ds(part * ROWS_PER_WARPGROUP, ROWS_PER_WARPGROUP)
                shape = (ROWS_PER_WARPGROUP, COLUMNS)
                at = begin + part * ROWS_PER_WARPGROUP
                at += plgpu.broadcasted_iota(jnp.int32, shape, 0, layout=plgpu.Layout.WGMMA)
                inside = (at >= item.low) & (at < item.high)
                for column in range(0, plan.sizes.head_dim, COLUMNS):
                    values = refs.v_ring.at[stage, rows, pl.ds(column, COLUMNS)]
                    read = values[...]
                    values[...] = jnp.where(inside, read, jnp.zeros_like(read))

        plgpu.commit_smem()
        if tiles.consumers > 1:
            plgpu.barrier_arrive(refs.clean)
            plgpu.barrier_wait(refs.clean)


def _store(plan: Plan, refs: Refs, warpgroup: Array, item: Item, largest: Array, total: Array) -> None:
    """Write an item's results, in tiles of 8 rows: those after its last are its own filling."""
    mine = warpgroup * ROWS_PER_WARPGROUP
    packed = pl.multiple_of(item.packed + mine, GRANULE)
    left = jnp.minimum(item.num_rows - mine, ROWS_PER_WARPGROUP)
    granules = lax.div(left + (GRANULE - 1), jnp.int32(GRANULE))
    values, queries = refs.values.at[warpgroup], refs.q_tiles.at[warpgroup]
    first, second = refs.per_row.at[0, warpgroup], refs.per_row.at[1, warpgroup]

    def copy(granule: Array, pairs: Any) -> None:
        here = pl.ds(pl.multiple_of(granule * GRANULE, GRANULE), GRANULE)
        for source, target, begin in pairs:
            there = pl.ds(pl.multiple_of(begin + granule * GRANULE, GRANULE), GRANULE)
            plgpu.copy_smem_to_gmem(source.at[here], target.at[there])

    @pl.when(item.slot < 0)
    def _() -> None:
        sinks = None
        if refs.sinks is not None:
            sinks = plgpu.load(refs.sinks.at[item.head, pl.ds(packed, ROWS_PER_WARPGROUP)], optimized=False)
        factor, lse = finish(largest, total, sinks)
        for column in range(0, plan.sizes.head_dim, COLUMNS):
            columns = pl.ds(column, COLUMNS)
            sums = values.at[:, columns][...]
            queries.at[:, columns][...] = (sums * wide(factor, sums.shape)).astype(queries.dtype)
        first[...] = lse
        plgpu.commit_smem()
        pairs = (queries, refs.out.at[item.head], packed), (first, refs.lse.at[item.head], packed)
        pl.loop(0, granules)(lambda granule: copy(granule, pairs))

    if plan.sizes.num_slots:
        @pl.when(item.slot >= 0)
        def _() -> None:
            first[...] = largest
            second[...] = total
            plgpu.commit_smem()
            rows = item.head * plan.sizes.group_rows
            pairs = [(source, target.at[item.slot], rows) for source, target in (
                (values, refs.partial_values), (first, refs.partial_largest), (second, refs.partial_total))]
            pl.loop(0, granules)(lambda granule: copy(granule, pairs))

    plgpu.wait_smem_to_gmem(0)
