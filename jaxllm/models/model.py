"""``Model``: a decoder's structure without its numbers."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxllm.models.config import DecoderConfig
from jaxllm.models.description import Description, Params
from jaxllm.models.linear import linear
from jaxllm.weights.rows import int8_rows
from jaxllm.weights.spec import ParamSpec

if TYPE_CHECKING:
    from jaxllm.models.modules import DecoderModules

_PROJECTION = "project_out"
"""The matrix that leads from hidden rows to the head's width, where that is another."""

Leaves = list[Array]
"""A tree's leaves in their order: what a compiled program takes with less effort than a tree."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder: its configuration and the description of every parameter (``Description``).

    specs: by dotted path ("layers.0.attention.qkv.weight"): shape, dtype and logical axes; of all of it, or of a part
        that some devices have, with the layers numbered as in the whole.
    like: for each layer, the first one whose modules equal its own.
    """

    config: DecoderConfig
    dtype: np.dtype
    specs: Mapping[str, ParamSpec]
    like: tuple[int, ...]

    @property
    def modules(self) -> DecoderModules:
        """What computes; made, and Flax imported, when something is traced."""
        from jaxllm.models.modules import decoder_modules

        return decoder_modules(self.config, self.dtype)

    def logits(self, params: Params, rows: Float[Array, "B D"]) -> Float[Array, "B V"]:
        """Float32 logits of hidden rows; needs only ``outer_params``."""
        head = params[self._head]
        if _PROJECTION in params:
            rows = linear(rows, params[_PROJECTION]["weight"])
        logits = linear(rows, head["weight"], jnp.float32)
        logits = logits + head["bias"].astype(jnp.float32) if "bias" in head else logits
        scale, cap = self.config.logit_scale, self.config.logit_soft_cap
        logits = logits if scale == 1 else logits * scale
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    @staticmethod
    def outer_params(params: Params) -> Params:
        """All parameters but the layers'."""
        return {name: part for name, part in params.items() if name != "layers"}

    def head_params(self, params: Params) -> Params:
        """The parameters that ``logits`` needs."""
        return {name: params[name] for name in (self._head, _PROJECTION) if name in params}

    @property
    def head_spec(self) -> ParamSpec:
        """The matrix that ``logits`` multiplies by."""
        return self.specs[f"{self._head}.weight"]

    @property
    def _head(self) -> str:
        return "embedding" if self.config.tie_word_embeddings else "head"

    @functools.cached_property
    def abstract_params(self) -> Params:
        """All parameters as shapes and dtypes."""
        return nest({path: spec.abstract() for path, spec in self.specs.items()})

    @functools.cached_property
    def layer_trees(self) -> list[Any]:
        """The structure of each layer's parameters; ``None``'s of a layer whose are not among ``specs``."""
        layers = self.abstract_params["layers"]
        return [jax.tree.structure(layers.get(number)) for number in range(self.config.num_layers)]

    @functools.cached_property
    def layer_kinds(self) -> list[int]:
        """A number for each layer: equal where modules and parameters are, so that one executable can serve them."""
        described: list[list[Any]] = [[first] for first in self.like]
        for path, spec in self.specs.items():
            match path.split(".", 2):
                case ["layers", number, leaf]:
                    described[int(number)].append((leaf, spec))
        return [described.index(layer) for layer in described]

    @property
    def quantized(self) -> dict[str, ParamSpec]:
        """The parameters that are not kept as plain arrays."""
        return {path: spec for path, spec in self.specs.items() if spec.parts or spec.stack}

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(spec.nbytes for spec in self.specs.values())

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(spec.size for spec in self.specs.values())

    def init(self, seed: int = 0, scale: float = 0.02, put: Callable[[str, Any], Any] | None = None) -> Params:
        """Random parameters: normal with standard deviation ``scale``, zeros for biases, norms that only normalize.
        Those kept in parts must be so in int8. put: gives a parameter to the devices, by its path and its arrays; by
        default to the default device."""
        generator = np.random.default_rng(seed)

        def leaf(path: str, spec: ParamSpec) -> Any:
            if path.endswith(".bias"):
                values = np.zeros(spec.shape, np.float32)
            elif "norm" in path:
                values = np.full(spec.shape, 1 - self.config.norm_offset, np.float32)
            else:
                values = generator.normal(0.0, scale, spec.shape).astype(np.float32)
            found = int8_rows(values) if spec.parts else values.astype(spec.dtype)
            return jax.tree.map(jax.device_put, found) if put is None else put(path, found)

        return nest({path: leaf(path, spec) for path, spec in self.specs.items()})


def build_model(config: DecoderConfig, dtype: Any, description: Description | None = None) -> Model:
    """A decoder in ``dtype``; nothing is allocated. description: that of its modules, if it is there already."""
    dtype = np.dtype(dtype)
    found = description or describe(config, dtype)
    return Model(config, dtype, found.specs, found.like)


def describe(config: DecoderConfig, dtype: np.dtype) -> Description:
    """The description of a decoder, from its modules."""
    from jaxllm.models.modules import decoder_modules

    return decoder_modules(config, dtype).description


def nest(flat: Mapping[str, Any]) -> Params:
    """A nested dict from dotted paths."""
    nested: Params = {}
    for path, leaf in flat.items():
        *parents, name = [int(part) if part.isdecimal() else part for part in path.split(".")]
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return nested
