"""``SpreadPartition``: the replicas of a model whose experts are dealt out over all of them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.models.model import Model
from jaxllm.parallel.mesh import DATA, TENSOR
from jaxllm.parallel.partition import Partition
from jaxllm.parallel.rules import AxisRules, exchange_config, local_config
from jaxllm.weights.spec import ParamSpec
from jaxllm.weights.splits import WHOLE, Ranges, split_of

_OF_EXPERTS = ("expert_gate_up", "expert_down")


@dataclasses.dataclass(frozen=True)
class SpreadPartition(Partition):
    """A model with experts, and the devices of all its replicas: each has some whole experts, and of all else what it
    has in a replica by itself.

    mesh: of the axes ``data`` and ``tensor`` (``jaxllm.parallel.mesh.stage_mesh``).

    Arrays that each replica has its own of, as those of its cache, are here one array, the first replica's numbers
    along the first axis before the second's: ``joined`` and ``part`` change between these without a copy.
    """

    AXES: ClassVar[tuple[str, ...]] = (DATA, TENSOR)

    @functools.cached_property
    def local(self) -> Model:
        """What one device computes."""
        assert self.mesh is not None
        ragged = self.mesh.devices.flat[0].platform != "cpu"
        return dataclasses.replace(self.whole, config=exchange_config(self.whole.config, *self._sizes, ragged=ragged),
                                   specs={path: local for path, (local, _) in self._split.items()})

    @functools.cached_property
    def _sizes(self) -> tuple[int, int]:
        assert self.mesh is not None
        return self.mesh.shape[DATA], self.mesh.shape[TENSOR]

    @functools.cached_property
    def _split(self) -> Mapping[str, tuple[ParamSpec, Any]]:
        data, tensor = self._sizes
        config = self.whole.config
        exchange_config(config, data, tensor)  # that it can be
        rules = None if tensor == 1 else AxisRules(config, local_config(config, tensor, by_expert=True))

        def split(path: str, spec: ParamSpec) -> tuple[ParamSpec, Any]:
            if spec.is_of_experts:
                local, found = split_of(spec, self._dealt, path)
                return local, jax.tree.map(lambda each: each if each.axis is None else dataclasses.replace(
                    each, over=self.AXES), found)
            if rules is None:
                return spec, jax.tree.map(lambda leaf: WHOLE, spec.abstract())
            return split_of(spec, rules.ranges, path)

        return {path: split(path, spec) for path, spec in self.whole.specs.items()}

    def _dealt(self, axis: str | None, length: int) -> list[Ranges] | None:
        """Of the axes of experts each device has an equal part."""
        part = length // self.size
        return [((number * part, (number + 1) * part),) for number in range(self.size)] if axis in _OF_EXPERTS else None

    def joined_sharding(self, part: jax.sharding.Sharding | None) -> NamedSharding:
        """How the array of all replicas' parts lies. part: how one lies in its replica."""
        spec = part.spec if isinstance(part, NamedSharding) else PartitionSpec()
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec(DATA, *spec[1:]))

    def joined(self, parts: Sequence[jax.Array]) -> jax.Array:
        """One array of each replica's."""
        shape = (len(parts) * parts[0].shape[0], *parts[0].shape[1:])
        shards = [shard.data for part in parts for shard in part.addressable_shards]
        return jax.make_array_from_single_device_arrays(shape, self.joined_sharding(parts[0].sharding), shards)

    def part(self, array: jax.Array, replica: Partition, *, stacked: bool = True) -> jax.Array:
        """A replica's own of an array of ``joined``; of one that is not ``stacked``, the same on its devices."""
        data, _ = self._sizes
        found = {shard.device: shard.data for shard in array.addressable_shards}
        if replica.device is not None:
            return found[replica.device]
        assert replica.mesh is not None
        assert isinstance(array.sharding, NamedSharding)
        spec = PartitionSpec(None, *array.sharding.spec[1:]) if stacked else array.sharding.spec
        shape = (array.shape[0] // data, *array.shape[1:]) if stacked else array.shape
        return jax.make_array_from_single_device_arrays(
            shape, NamedSharding(replica.mesh, spec), [found[device] for device in replica.mesh.devices.flat])
