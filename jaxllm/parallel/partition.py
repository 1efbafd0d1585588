"""``Partition``: a model on one device or over several that share every layer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model, Params, nest
from jaxllm.parallel.mesh import TENSOR, is_shared
from jaxllm.parallel.rules import AxisRules, local_config
from jaxllm.weights.spec import ParamSpec
from jaxllm.weights.splits import WHOLE, Split, split_of
from jaxllm.weights.trees import flatten


@dataclasses.dataclass(frozen=True)
class Partition:
    """A model, the devices that compute it, and what each of them has of it.

    whole: the model. mesh: of the axis ``tensor`` alone (``jaxllm.parallel.tensor_mesh``); ``None`` for the default
    device. by_expert: deal out whole experts in place of a part of each one's width. together: where experts
    are spread over replicas, of which this is one: the devices of all of them, which compute the layers together.

    Raises ``ParameterError`` where the model cannot be shared among so many devices.
    """

    whole: Model
    mesh: jax.sharding.Mesh | None = None
    by_expert: bool = False
    together: Partition | None = None

    AXES: ClassVar[tuple[str, ...]] = (TENSOR,)

    def __post_init__(self) -> None:
        if self.mesh is not None and self.mesh.axis_names != self.AXES:
            raise ValueError(f"mesh has the axes {self.mesh.axis_names}; a {type(self).__name__} takes {self.AXES}")
        _ = self.local

    @property
    def owner(self) -> Partition:
        """Whose the parameters are."""
        return self if self.together is None else self.together

    @property
    def size(self) -> int:
        """How many devices there are."""
        return 1 if self.mesh is None else self.mesh.size

    @functools.cached_property
    def local(self) -> Model:
        """What one device computes; the model itself where there is one. Its specs are of the device's parts."""
        if self.together is not None:
            return self.together.local
        if self.size == 1:
            return self.whole
        return dataclasses.replace(self.whole, config=self._rules.local,
                                   specs={path: local for path, (local, _) in self._split.items()})

    @property
    def device(self) -> jax.Device | None:
        """Where there is one alone, and it was named: that."""
        return None if self.mesh is None or self.size > 1 else self.mesh.devices.flat[0]

    @functools.cached_property
    def here(self) -> bool:
        """Whether any of the devices belongs to this process."""
        return bool(self.local_devices)

    @functools.cached_property
    def is_shared(self) -> bool:
        """Whether some of the devices belong to this process, and others to another one."""
        return self.mesh is not None and is_shared(self.mesh)

    @property
    def local_devices(self) -> list[jax.Device]:
        """Those that belong to this process."""
        return jax.local_devices()[:1] if self.mesh is None else list(self.mesh.local_devices)

    @property
    def replicated(self) -> Sharding | None:
        """Where arrays lie that each device has whole; ``None`` for the default device."""
        if self.mesh is None:
            return None
        if self.size == 1:
            return SingleDeviceSharding(self.mesh.devices.flat[0])
        return NamedSharding(self.mesh, PartitionSpec())

    def pool_spec(self, spec: KVSpec) -> PartitionSpec:
        """How each array of the cache lies, ``[P, K, S, ...]``: by kv heads. Latents are on every device."""
        shared = self.size == 1 or self.whole.config.latent is not None
        return PartitionSpec() if shared else PartitionSpec(None, TENSOR)

    def global_kv(self, spec: KVSpec) -> KVSpec:
        """The cache of all devices together, as one array. spec: of one device (``kv_spec`` of ``local.config``)."""
        if self.pool_spec(spec) == PartitionSpec():
            return spec
        return dataclasses.replace(spec, entries={
            name: dataclasses.replace(entry, heads=entry.heads * self.size) for name, entry in spec.entries.items()})

    def block_bytes_here(self, spec: KVSpec, block_size: int) -> int:
        """What a block of the cache takes in this process's memory, of what its devices have. spec: of one device."""
        whole = self.pool_spec(spec) == PartitionSpec()
        return spec.block_bytes(block_size) * (min(1, len(self.local_devices)) if whole else len(self.local_devices))

    @functools.cached_property
    def splits(self) -> dict[str, Any]:
        """How each parameter is spread: by path, a tree of ``Split`` like that of ``spec.abstract()``."""
        return {path: split for path, (_, split) in self._split.items()}

    @functools.cached_property
    def abstract_params(self) -> Params:
        """All parameters as shapes, dtypes and shardings of the arrays that the programs take."""
        if self.mesh is None:
            return self.whole.abstract_params
        return nest({path: jax.tree.map(self._abstract, spec.abstract(), self.splits[path])
                     for path, spec in self.whole.specs.items()})

    def place(self, array: Any, split: Split = WHOLE) -> jax.Array:
        """An array of NumPy's or JAX's where it belongs. NumPy's may be used in place; whoever goes on to change one
        copies it before."""
        if self.size > 1:
            assert self.mesh is not None
            return split.put(array, self.mesh)
        device = jax.local_devices()[0] if self.device is None else self.device
        if not isinstance(array, jax.Array):
            return jax.device_put(array, self.device)
        here = isinstance(array.sharding, SingleDeviceSharding) and array.devices() == {device}
        # The sharding of a mesh of one device is changed to the device without a copy.
        return array if here else jax.device_put(array, device)

    def put(self, path: str, leaf: Any) -> Any:
        """A parameter, in the form of its spec, where it belongs."""
        return jax.tree.map(self.place, leaf, self.splits[path])

    def put_small(self, values: np.ndarray) -> jax.Array:
        """A small array that each device has whole, in memory of its own."""
        sharding = self.replicated
        if sharding is not None and not sharding.is_fully_addressable:
            return self.place(values.copy())
        return jax.device_put(values, sharding, may_alias=False)

    def restore(self, params: Params) -> Params:
        """Placed parameters as the model itself has them."""
        if self.size == 1:
            return params
        mesh, found = self.mesh, flatten(params)
        assert mesh is not None

        done: dict[int, jax.Array] = {}  # each array once, also one that holds all layers

        def own(array: jax.Array, split: Split, like: Any) -> jax.Array:
            if split.axis is not None and id(array) not in done:
                done[id(array)] = split.restore(array, like.shape[split.axis], mesh)
            return done.get(id(array), array)

        return nest({path: jax.tree.map(own, found[path], self.splits[path], spec.abstract())
                     for path, spec in self.whole.specs.items()})

    def converted(self, array: Any, dtype: Any) -> Any:
        """An array in another dtype where it is; of NumPy's, a copy."""
        if not isinstance(array, jax.Array):
            if self.size > 1:
                return np.array(array, dtype)
            return jax.device_put(np.array(array, dtype), self.device) if self.mesh is not None else (
                jnp.array(array, dtype))
        if array.dtype != dtype or array.weak_type:
            array = jnp.asarray(array).astype(dtype)
        return array if self.size > 1 else self.place(array)

    def _abstract(self, like: Any, split: Split) -> Any:
        sharding = self.replicated
        if self.size > 1:
            assert self.mesh is not None
            sharding = split.sharding(self.mesh)
        return jax.ShapeDtypeStruct(split.shape(like.shape, devices=len(split.ranges)), like.dtype, sharding=sharding)

    @functools.cached_property
    def _rules(self) -> AxisRules:
        return AxisRules(self.whole.config, local_config(self.whole.config, self.size, by_expert=self.by_expert))

    @functools.cached_property
    def _split(self) -> Mapping[str, tuple[ParamSpec, Any]]:
        if self.size == 1:
            return {path: (spec, jax.tree.map(lambda leaf: WHOLE, spec.abstract()))
                    for path, spec in self.whole.specs.items()}
        return {path: split_of(spec, self._rules.ranges, path) for path, spec in self.whole.specs.items()}


@dataclasses.dataclass(frozen=True)
class PlacedParams:
    """Parameters that a ``Partition`` has placed already: what loading gives, a device's part at a time."""

    partition: Partition
    params: Params
