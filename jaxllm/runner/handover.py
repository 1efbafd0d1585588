"""``Handover``: small arrays on their way from one stage of a pipeline to another, whoever's devices they are on."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.parallel.mesh import PIPE, TENSOR, takes_turns
from jaxllm.parallel.partition import Partition


class Handover:
    """From each device of a stage to its counterpart of another.

    Where some of the devices are another process's it is a program over all of both stages, a permutation, which every
    process that has any of them runs; else a copy from device to device.

    source, target: stages, of equally many devices.
    """

    def __init__(self, source: Partition, target: Partition) -> None:
        assert source.mesh is not None
        assert target.mesh is not None
        self._source, self._target = source, target
        self._mesh = jax.sharding.Mesh(np.stack([source.mesh.devices, target.mesh.devices]), (PIPE, TENSOR))
        self._sharding = NamedSharding(self._mesh, PartitionSpec(PIPE))
        self._fillers: dict[Any, jax.Array] = {}
        self._takes_turns = takes_turns(self._mesh)

    @property
    def here(self) -> bool:
        """Whether this process takes part."""
        return self._source.here or self._target.here

    def __call__(self, array: jax.Array | None, shape: tuple[int, ...], dtype: Any) -> tuple[jax.Array | None, Any]:
        """The array on the target's devices, as far as they are here, and what is there once it is sent.

        array: on each device of the source whole, ``None`` where none of them is here. shape, dtype: its.
        """
        if self._sharding.is_fully_addressable:
            moved = jax.device_put(array, self._target.replicated)
            return moved, moved
        if not self.here:
            return None, None
        parts = {} if array is None else {shard.device: shard.data for shard in array.addressable_shards}
        # Each device has a line of its own: the stages' numbers, one after the other.
        both = jax.make_array_from_single_device_arrays((2 * shape[0], *shape[1:]), self._sharding, [
            parts[device] if device in parts else self._filler(device, shape, dtype)
            for device in self._mesh.local_devices], dtype=dtype)
        sent = self._shifted(both)
        if self._takes_turns:
            jax.block_until_ready(sent)
        if not self._target.here:
            return None, sent
        found = {shard.device: shard.data for shard in sent.addressable_shards}
        own = [found[device] for device in self._target.local_devices]
        if self._target.size == 1:
            return own[0], sent
        replicated = self._target.replicated
        assert replicated is not None
        return jax.make_array_from_single_device_arrays(shape, replicated, own), sent

    def _filler(self, device: jax.Device, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """What the target puts in, which nobody reads."""
        key = device, shape, np.dtype(dtype)
        if key not in self._fillers:
            self._fillers[key] = jax.device_put(np.zeros(shape, dtype), device)
        return self._fillers[key]

    @functools.cached_property
    def _shifted(self) -> Any:
        def jaxllm_hand_over(array: jax.Array) -> jax.Array:
            return jax.lax.ppermute(array, PIPE, [(0, 1)])

        return jax.jit(jax.shard_map(jaxllm_hand_over, mesh=self._mesh, in_specs=PartitionSpec(PIPE),
                                     out_specs=PartitionSpec(PIPE), check_vma=False))
