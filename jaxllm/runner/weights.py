"""``Weights``: a model's parameters on the device, replaced as a whole, put aside or dropped."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxllm.errors import EngineError
from jaxllm.models.matching import match_params
from jaxllm.models.model import Params, nest
from jaxllm.parallel.partition import Partition, PlacedParams
from jaxllm.weights.placement import place
from jaxllm.weights.trees import flatten, misfit_error


class Weights:
    """outer, head: the model's ``outer_params`` and ``head_params``; layers: each layer's own, as leaves, none of a
    layer that the model's description leaves to others. All as they lie on the devices."""

    def __init__(self, partition: Partition, params: Params | PlacedParams) -> None:
        self._partition, self._model = partition, partition.whole
        self._asleep: Params | None = None
        self.present = False
        self.replace(params)

    def replace(self, params: Params | PlacedParams) -> None:
        """Take other parameters of the same names and shapes, converted to the model's dtypes.

        Arrays that are in place already are used as they are. ``ParameterError`` says what does not fit; the old ones
        then stay.
        """
        placed = params.params if isinstance(params, PlacedParams) else fit_params(self._partition, params)
        self.outer = self._model.outer_params(placed)
        self.head = self._model.head_params(placed)
        layers = placed["layers"]
        self.layers = [jax.tree.leaves(layers.get(layer)) for layer in range(self._model.config.num_layers)]
        self.present, self._asleep = True, None

    @property
    def params(self) -> Params:
        """The parameters as a nested dict, the caller's own; ``EngineError`` while there are none."""
        return self._partition.restore(jax.tree.map(lambda leaf: leaf, self._placed))

    @property
    def _placed(self) -> Params:
        if not self.present:
            raise EngineError("the engine has no weights: wake it up, or give it some with update_params")
        layers = enumerate(map(jax.tree.unflatten, self._model.layer_trees, self.layers))
        return {**self.outer, "layers": {number: layer for number, layer in layers if layer is not None}}

    def placed_on(self, partition: Partition) -> PlacedParams:
        """The same parameters on the devices of another replica, moved there from these."""
        moved: dict[int, Any] = {}  # each array once, also one that holds all layers
        return PlacedParams(partition, jax.tree.map(
            lambda leaf, like: moved.setdefault(id(leaf), jax.device_put(leaf, like.sharding)),
            self._placed, partition.abstract_params))

    def take_over(self, other: Weights) -> None:
        """Have the parameters of another replica."""
        self.replace(other.placed_on(self._partition))

    def put_aside(self) -> None:
        """Move them to host memory; nothing where there are none."""
        if self.present:
            placed = self._placed
            # Each array once, also one that holds all layers.
            copies = {number: _Aside.of(leaf) for number, leaf in {id(leaf): leaf for leaf in jax.tree.leaves(placed)
                                                                   }.items()}
            self._asleep = jax.tree.map(lambda leaf: copies[id(leaf)], placed)
            self._forget()

    def drop(self) -> None:
        """Forget them."""
        self._asleep = None
        self._forget()

    def take_back(self) -> None:
        """Undo ``put_aside``."""
        if self._asleep is not None:
            asides = {id(aside): aside for aside in jax.tree.leaves(self._asleep)}
            arrays = {number: aside.back() for number, aside in asides.items()}
            back = jax.tree.map(lambda aside: arrays[id(aside)], self._asleep)
            self.replace(PlacedParams(self._partition, back))

    def _forget(self) -> None:
        self.outer, self.head, self.layers, self.present = {}, {}, [], False


@dataclasses.dataclass(frozen=True)
class _Aside:
    """An array in host memory, to go back where it was.

    parts: what each device of this process had, one copy of equal ones.
    """

    shape: tuple[int, ...]
    sharding: jax.sharding.Sharding
    parts: list[tuple[jax.Device, np.ndarray]]

    @classmethod
    def of(cls, array: jax.Array) -> _Aside:
        copies: dict[str, np.ndarray] = {}
        return cls(array.shape, array.sharding, [
            (shard.device, copies.setdefault(str(shard.index), np.asarray(shard.data)))
            for shard in array.addressable_shards])

    def back(self) -> jax.Array:
        return jax.make_array_from_single_device_arrays(
            self.shape, self.sharding, [jax.device_put(part, device) for device, part in self.parts])


def fit_params(partition: Partition, params: Any) -> Params:
    """Parameters in any known layout (``jaxllm.weights.trees``) as the tree that the model's programs take.

    ``ParameterError`` lists all that does not fit: what is missing, what is unexpected, wrong shapes, wrong types. What
    the model keeps in int8 is quantized where it comes as plain numbers.
    """
    leaves = flatten(params)
    found, problems = match_params(partition.whole, leaves, spread=partition.mesh is not None)
    if problems:
        raise misfit_error(len(leaves), problems)
    return nest(place(partition, found))
