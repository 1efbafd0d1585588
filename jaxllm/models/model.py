"""``Model``: a decoder's structure without its numbers, and the pure functions over parameters that it defines."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxllm.models.config import DecoderConfig
from jaxllm.models.decoder import Decoder, LayerCache, StepContext, run_layer
from jaxllm.models.layers import rope_tables
from jaxllm.models.linear import linear
from jaxllm.weights.rows import int8_rows
from jaxllm.weights.spec import ParamSpec

Params = dict[Any, Any]
"""Nested dict of parameter leaves; a layer's number is an int key."""


Leaves = list[Array]
"""A tree's leaves in their order: what a compiled program takes with less effort than a tree."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder: its configuration, its parts' graphs (``nnx.GraphDef``) and the description of every parameter.

    graphs: of the embedding, the norm and, unless tied to the embedding, the head, by name.
    layer_graphs: of each layer; layers of one kind have equal graphs, so that one executable can serve them.
    specs: by dotted path ("layers.0.attention.qkv.weight"): shape, dtype and logical axes.
    """

    config: DecoderConfig
    dtype: np.dtype
    graphs: Mapping[str, nnx.GraphDef]
    layer_graphs: tuple[nnx.GraphDef, ...]
    specs: Mapping[str, ParamSpec]

    def embed(self, params: Params, token_ids: Int[Array, " T"]) -> Float[Array, "T D"]:
        """The residual stream's beginning: rows of the embedding."""
        return nnx.merge(self.graphs["embedding"], params["embedding"])(token_ids)

    def step_context(self, positions: Int[Array, " T"], slots: Int[Array, " T"], attention: Any) -> StepContext:
        """What the layers of a step share."""
        size = self.config.head_dim
        # Angles of zero turn nothing.
        frequencies = (np.zeros(size // 2, np.float32) if rope is None else rope.inverse_frequencies(size)
                       for rope in self.config.ropes)
        return StepContext(tuple(rope_tables(positions, jnp.asarray(each)) for each in frequencies), slots, attention)

    @staticmethod
    def run_layers(graphs: Sequence[nnx.GraphDef], params: Sequence[Params], x: Float[Array, "T D"], step: StepContext,
                   cache: Sequence[LayerCache]) -> tuple[Float[Array, "T D"], list[LayerCache]]:
        """Some layers in a row, each with its parameters and its share of the cache, which comes back written."""
        written = []
        for graph, layer_params, layer_cache in zip(graphs, params, cache, strict=True):
            x, layer_cache = run_layer(graph, layer_params, x, step, layer_cache)
            written.append(layer_cache)
        return x, written

    def finish(self, params: Params, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        """The normalized hidden states."""
        return nnx.merge(self.graphs["norm"], params["norm"])(x)

    def logits(self, params: Params, rows: Float[Array, "B D"]) -> Float[Array, "B V"]:
        """Float32 logits of hidden rows; needs only ``outer_params``."""
        logits = linear(rows, params["head" if "head" in self.graphs else "embedding"]["weight"], jnp.float32)
        scale, cap = self.config.logit_scale, self.config.logit_soft_cap
        logits = logits if scale == 1 else logits * scale
        return logits if cap is None else cap * jnp.tanh(logits / cap)

    @staticmethod
    def outer_params(params: Params) -> Params:
        """All parameters but the layers'."""
        return {name: part for name, part in params.items() if name != "layers"}

    def head_params(self, params: Params) -> Params:
        """The parameters that ``logits`` needs."""
        name = "head" if "head" in self.graphs else "embedding"
        return {name: params[name]}

    @functools.cached_property
    def abstract_params(self) -> Params:
        """All parameters as shapes and dtypes."""
        return nest({path: spec.abstract() for path, spec in self.specs.items()})

    @functools.cached_property
    def layer_trees(self) -> list[Any]:
        """The structure of each layer's parameters."""
        layers = self.abstract_params["layers"]
        return [jax.tree.structure(layers[number]) for number in range(len(layers))]

    @functools.cached_property
    def layer_kinds(self) -> list[int]:
        """A number for each layer: equal where graphs and parameters are, so that one executable can serve them."""
        described: list[list[Any]] = [[graph] for graph in self.layer_graphs]
        for path, spec in self.specs.items():
            match path.split(".", 2):
                case ["layers", number, leaf]:
                    described[int(number)].append((leaf, spec))
        return [described.index(layer) for layer in described]

    @property
    def quantized(self) -> dict[str, ParamSpec]:
        """The parameters that are not kept as plain arrays."""
        return {path: spec for path, spec in self.specs.items() if spec.parts}

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(spec.nbytes for spec in self.specs.values())

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(spec.size for spec in self.specs.values())

    def init(self, seed: int = 0, scale: float = 0.02) -> Params:
        """Random parameters: normal with standard deviation ``scale``, zeros for biases, norms that only normalize.
        Those kept in parts must be so in int8."""
        generator = np.random.default_rng(seed)

        def leaf(path: str, spec: ParamSpec) -> Any:
            if "norm" in path:
                values = np.full(spec.shape, 1 - self.config.norm_offset, np.float32)
            elif path.endswith(".bias"):
                values = np.zeros(spec.shape, np.float32)
            else:
                values = generator.normal(0.0, scale, spec.shape).astype(np.float32)
            if not spec.parts:
                return jax.device_put(values.astype(spec.dtype))
            return int8_rows(values)

        return nest({path: leaf(path, spec) for path, spec in self.specs.items()})


def build_model(config: DecoderConfig, dtype: Any) -> Model:
    """Describe a decoder in ``dtype``; nothing is allocated."""
    decoder = Decoder(config, dtype)
    specs = {}
    for path, variable in nnx.to_flat_state(nnx.state(decoder)):
        shape = variable.get_value()
        specs[".".join(map(str, path))] = ParamSpec(shape.shape, shape.dtype, variable.axes)
    graphs = {name: nnx.graphdef(getattr(decoder, name)) for name in ("embedding", "norm", "head")
              if hasattr(decoder, name)}
    return Model(config, np.dtype(dtype), graphs, tuple(map(nnx.graphdef, decoder.layers)), specs)


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
