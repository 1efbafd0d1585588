"""What the producer and the consumers of the Mosaic GPU attention kernel share: operands, items, the fixed sizes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from pallas_kernels.paged_attention.mosaic_softmax import Scores
from pallas_kernels.paged_attention.mosaic_work import Sizes


@dataclass(frozen=True)
class Item:
    """One item of work and its kv head, as scalars."""

    row: Array
    packed: Array
    num_rows: Array
    position: Array
    last: Array
    low: Array
    high: Array
    slot: Array
    head: Array


@dataclass(frozen=True)
class Plan:
    """What is fixed while a kernel is traced. num_blocks: thread blocks. scaled: pools are in bytes, with scales."""

    sizes: Sizes
    scores: Scores
    block_size: int
    num_blocks: int
    has_sinks: bool
    scaled: bool
    interpret: bool

    def tiles(self, item: Item) -> tuple[Array, Array]:
        """First tile of an item and the one after its last."""
        keys = self.sizes.tiles.keys
        return lax.div(item.low, jnp.int32(keys)), lax.div(item.high + (keys - 1), jnp.int32(keys))

    def stage(self, number: Array) -> Array:
        """Where in the rings the tile lies that is the number-th of a thread block."""
        return lax.rem(number, jnp.int32(self.sizes.tiles.stages))


@dataclass(frozen=True)
class Refs:
    """Operands, results and scratch of the kernel."""

    q: Any
    k_pool: Any
    v_pool: Any
    tables: Any
    items: Any
    num_items: Any
    positions: Any
    sinks: Any
    k_scales: Any
    v_scales: Any
    out: Any
    lse: Any
    partial_values: Any
    partial_largest: Any
    partial_total: Any
    q_tiles: Any
    values: Any
    per_row: Any
    k_ring: Any
    v_ring: Any
    q_full: Any
    k_full: Any
    v_full: Any
    k_free: Any
    v_free: Any
    clean: Any
    scale_rings: Any
    k_tile: Any
    v_tile: Any
    k_ready: Any
    v_ready: Any

    @classmethod
    def of(cls, refs: tuple[Any, ...], plan: Plan) -> Refs:
        """Of a kernel's references in order, which lack those of sinks and of scales where there are none."""
        absent = {*(() if plan.has_sinks else ("sinks",)), *(() if plan.scaled else _OF_SCALED)}
        present = [field.name for field in dataclasses.fields(cls) if field.name not in absent]
        return cls(**dict.fromkeys(absent), **dict(zip(present, refs, strict=True)))


_OF_SCALED = ("k_scales", "v_scales", "scale_rings", "k_tile", "v_tile", "k_ready", "v_ready")
