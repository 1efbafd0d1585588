"""``DecoderModules``: a decoder's NNX modules as graphs, and the pure functions over parameters that they define.

Only tracing and describing a model need them, and with them Flax, which takes longer to import than all of jaxllm."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from jaxllm.models.config import DecoderConfig
from jaxllm.models.decoder import Decoder, run_layer
from jaxllm.models.description import Description, Params
from jaxllm.models.rope_tables import rope_tables
from jaxllm.models.step import LayerCache, StepContexts
from jaxllm.weights.spec import ParamSpec


@dataclasses.dataclass(frozen=True)
class DecoderModules:
    """The graphs (``nnx.GraphDef``) of a decoder's parts.

    outer: of the embeddings and the norms beside the layers, by name. layers: of each layer. description: of the
    parameters that they take.
    """

    config: DecoderConfig
    outer: Mapping[str, nnx.GraphDef]
    layers: tuple[nnx.GraphDef, ...]
    description: Description

    def embed(self, params: Params, token_ids: Int[Array, " T"], positions: Int[Array, " T"]) -> Float[Array, "T D"]:
        """The residual stream's beginning: rows of the embedding, and of that of positions, if there is one."""
        x = self._run("embedding", params, token_ids)
        if "project_in" in self.outer:
            x = self._run("project_in", params, x)
        if "positions" in self.outer:
            x = x + self._run("positions", params, positions + self.config.position_offset)
        return self._run("embedding_norm", params, x) if "embedding_norm" in self.outer else x

    def step_contexts(self, positions: Int[Array, " T"], valid: Bool[Array, " T"], attention: Any,
                      slots: Sequence[Int[Array, " T"]], tables: Sequence[Int[Array, "R M"]]) -> StepContexts:
        """What the layers of a step share."""
        rotary = tuple(rope_tables(positions, rope, self.config.head_dim) for rope in self.config.ropes)
        return StepContexts(rotary, positions, valid, attention, tuple(slots), tuple(tables))

    def run_layers(self, layers: slice, params: Sequence[Params], x: Float[Array, "T D"], step: StepContexts,
                   cache: Sequence[LayerCache], places: Sequence[tuple[int, int]]
                   ) -> tuple[Float[Array, "T D"], list[LayerCache]]:
        """Some layers in a row, each with its parameters; the cache comes back written.

        places: of each layer, the number of its group in ``step`` and of its share in ``cache``.
        """
        written = list(cache)
        for graph, layer_params, (group, share) in zip(self.layers[layers], params, places, strict=True):
            x, written[share] = run_layer(graph, layer_params, x, step.of(group), written[share])
        return x, written

    def finish(self, params: Params, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        """The hidden states, normalized where the model does that."""
        return self._run("norm", params, x) if "norm" in self.outer else x

    def _run(self, name: str, params: Params, x: Array) -> Float[Array, "T D"]:
        return nnx.merge(self.outer[name], params[name])(x)


_OUTER = ("embedding", "project_in", "positions", "embedding_norm", "norm")


@functools.lru_cache(maxsize=4)
def decoder_modules(config: DecoderConfig, dtype: np.dtype) -> DecoderModules:
    """The modules of a decoder in ``dtype``; nothing is allocated."""
    decoder = Decoder(config, dtype)
    specs = {}
    for path, variable in nnx.to_flat_state(nnx.state(decoder)):
        shape = variable.get_value()
        specs[".".join(map(str, path))] = ParamSpec(shape.shape, shape.dtype, variable.axes)
    layers = tuple(map(nnx.graphdef, decoder.layers))
    return DecoderModules(
        config, {name: nnx.graphdef(getattr(decoder, name)) for name in _OUTER if hasattr(decoder, name)}, layers,
        Description(specs, tuple(map(layers.index, layers))))
