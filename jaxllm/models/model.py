"""``Model``: a decoder's structure without its numbers, and the pure functions over parameters that it defines."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxllm.models.config import DecoderConfig
from jaxllm.models.decoder import Decoder, head_logits, head_parameters
from jaxllm.weights.spec import ParamSpec

Params = dict[Any, Any]
"""Nested dict of parameter leaves; a layer's number is an int key."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A decoder: its configuration, its graph (``nnx.GraphDef``) and the description of every parameter.

    specs: by dotted path ("layers.0.attention.qkv.weight"): shape, dtype and logical axes.
    """

    config: DecoderConfig
    dtype: np.dtype
    graph: nnx.GraphDef
    specs: Mapping[str, ParamSpec]

    def forward(self, params: Params, token_ids: Int[Array, " T"], positions: Int[Array, " T"],
                slots: Int[Array, " T"], attention: Any, cache: list[dict[str, Array]]
                ) -> tuple[Float[Array, "T D"], list[dict[str, Array]]]:
        """Normalized hidden states of every token, and the cache with the tokens' keys and values written."""
        return nnx.merge(self.graph, params)(token_ids, positions, slots, attention, cache)

    def head_parameters(self, params: Params) -> Params:
        """The part of ``params`` that ``logits`` needs."""
        return head_parameters(params)

    def logits(self, head: Params, rows: Float[Array, "B D"]) -> Float[Array, "B V"]:
        """Float32 logits of hidden rows."""
        return head_logits(head, rows)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(spec.nbytes for spec in self.specs.values())

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(spec.size for spec in self.specs.values())

    def init(self, seed: int = 0, scale: float = 0.02) -> Params:
        """Random parameters: normal with standard deviation ``scale``, ones for norms, zeros for biases."""
        generator = np.random.default_rng(seed)

        def leaf(path: str, spec: ParamSpec) -> Array:
            if "norm" in path:
                values = np.ones(spec.shape, np.float32)
            elif path.endswith(".bias"):
                values = np.zeros(spec.shape, np.float32)
            else:
                values = generator.normal(0.0, scale, spec.shape).astype(np.float32)
            return jax.device_put(values.astype(spec.dtype))

        return nest({path: leaf(path, spec) for path, spec in self.specs.items()})


def build_model(config: DecoderConfig, dtype: Any) -> Model:
    """Describe a decoder in ``dtype``; nothing is allocated."""
    graph, state = nnx.split(Decoder(config, dtype))
    specs = {}
    for path, variable in nnx.to_flat_state(state):
        shape = variable.get_value()
        specs[".".join(map(str, path))] = ParamSpec(shape.shape, shape.dtype, variable.axes)
    return Model(config, np.dtype(dtype), graph, specs)


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
