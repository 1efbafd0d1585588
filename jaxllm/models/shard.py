"""``Shard``: what a module knows of the devices that compute a model together, each with a part of it."""

from __future__ import annotations

import dataclasses

import jax
from jaxtyping import Array, Bool, Float, Int


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of a model that each of ``size`` devices holds: some heads, a part of the feed-forward widths and of the
    vocabulary (Shoeybi et al. 2019, Megatron-LM). Its methods are for functions that run under ``jax.shard_map``.

    axis: the mesh axis over which the devices lie. by_expert: whether whole experts are dealt out, in their order, in
    place of a part of each one's width. kv_copies: how many devices in a row hold the same kv head.
    """

    axis: str
    size: int
    by_expert: bool = False
    kv_copies: int = 1

    def index(self) -> Int[Array, ""]:
        """The number of this device, from 0."""
        return jax.lax.axis_index(self.axis)

    def sum(self, part: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """The sum of what each device has: one all-reduce."""
        total: Array = jax.lax.psum(part, self.axis)
        return total

    def own(self, values: Array, count: int) -> Array:
        """This device's ``count`` of values that are the same on all."""
        return jax.lax.dynamic_slice_in_dim(values, self.index() * count, count)

    def gather(self, part: Float[Array, "B n"], length: int) -> Float[Array, "B V"]:
        """The columns of all devices, one device's after the other's, up to ``length``."""
        whole: Array = jax.lax.all_gather(part, self.axis, axis=1, tiled=True)
        return whole[:, :length]

    def is_first(self) -> Bool[Array, ""]:
        """Whether this is device 0, which alone adds what must be added once."""
        return self.index() == 0


def summed(shard: Shard | None, part: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """``part`` added up over the devices, if there are several."""
    return part if shard is None else shard.sum(part)
