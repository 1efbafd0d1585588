"""``HostPool``: the storage of swapped-out blocks in host memory, laid out like the device's pool."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from jaxllm.kv_cache import KVSpec, abstract_pool

HostBlocks = list[dict[str, Any]]
"""Per pool position, the entries of ``KVSpec`` by name, each ``[N blocks, K heads, S slots, H size]``, in numpy."""


class SharedHostPool:
    """Of blocks that lie on several processes' devices, the parts of this process's, each kept once.

    Values are arrays over all devices; of those that are written, each process keeps its own devices' parts, and it
    gives them theirs when they are read. spec: of one device.
    """

    def __init__(self, spec: KVSpec, num_blocks: int, block_size: int) -> None:
        self._new_part = functools.partial(HostPool, spec, num_blocks, block_size)
        self._parts: dict[str, HostPool] = {}

    def write(self, blocks: np.ndarray, values: HostBlocks) -> None:
        """As ``HostPool.write``."""
        leaves, self._tree = jax.tree.flatten(values)
        self._like = [(leaf.shape, leaf.sharding) for leaf in leaves]
        self._part_of = {shard.device: str(shard.index[1]) for shard in leaves[0].addressable_shards}
        first_of = {part: device for device, part in reversed(self._part_of.items())}
        for part, device in first_of.items():
            own = [shard.data for leaf in leaves for shard in leaf.addressable_shards if shard.device == device]
            self._parts.setdefault(part, self._new_part()).write(
                blocks, jax.tree.unflatten(self._tree, jax.device_get(own)))

    def read(self, blocks: np.ndarray, count: int) -> HostBlocks:
        """As ``HostPool.read``. count: as many as were written at once."""
        found = {part: jax.tree.leaves(pool.read(blocks, count)) for part, pool in self._parts.items()}
        return jax.tree.unflatten(self._tree, [
            jax.make_array_from_single_device_arrays(shape, sharding, [
                jax.device_put(found[part][number], device) for device, part in self._part_of.items()])
            for number, (shape, sharding) in enumerate(self._like)])


class HostPool:
    """A fixed number of blocks in host memory, which is taken when the first of them is written.

    Which block holds what is decided elsewhere (``engine.swap``).
    """

    def __init__(self, spec: KVSpec, num_blocks: int, block_size: int) -> None:
        self._shapes = abstract_pool(spec, num_blocks, block_size)
        self._arrays: HostBlocks | None = None

    @property
    def allocated(self) -> bool:
        """Whether anything was ever written."""
        return self._arrays is not None

    def write(self, blocks: np.ndarray, values: HostBlocks) -> None:
        """Set blocks to the first of the ``values``, which may hold more."""
        if self._arrays is None:
            # Not zeroed: the operating system gives pages when they are written.
            self._arrays = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), self._shapes)
        for array, value in zip(jax.tree.leaves(self._arrays), jax.tree.leaves(values), strict=True):
            array[blocks] = value[: len(blocks)]

    def read(self, blocks: np.ndarray, count: int) -> HostBlocks:
        """Copies of blocks that were written before, followed by zeros up to ``count``."""

        def padded(array: np.ndarray) -> np.ndarray:
            values = np.zeros((count, *array.shape[1:]), array.dtype)
            values[: len(blocks)] = array[blocks]
            return values

        return jax.tree.map(padded, self._arrays)
