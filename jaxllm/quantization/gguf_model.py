"""A Hugging Face checkpoint as what a GGUF file says of it: metadata, and tensors under GGUF's names.

Source: llama.cpp's ``convert_hf_to_gguf.py`` (``LlamaModel``) and the GGUF specification.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from jaxllm.errors import UnsupportedModelError
from jaxllm.loading import open_model
from jaxllm.models.config import DecoderConfig
from jaxllm.models.rope import RopeConfig
from jaxllm.quantization.gguf_tokenizer import tokenizer_metadata
from jaxllm.quantization.rope import frequency_divisors
from jaxllm.weights.names import ARCHITECTURES, Architecture, unpermuted_rows
from jaxllm.weights.source import ModelSource


@dataclasses.dataclass(frozen=True)
class Field:
    """One key with its value. kind, element: ``gguf.GGUFValueType`` of the value, and of an array's elements."""

    name: str
    value: Any
    kind: Any
    element: Any = None


@dataclasses.dataclass(frozen=True)
class ModelTensor:
    """A tensor of the file.

    source: the checkpoint's name; empty for what comes from its configuration.
    read: rows [start, stop) in float32; a vector is one row.
    """

    name: str
    source: str
    shape: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]


@dataclasses.dataclass(frozen=True)
class GGUFModel:
    """What a file holds, but for its file type."""

    architecture: str
    fields: list[Field]
    tensors: list[ModelTensor]


def gguf_model(source: ModelSource) -> GGUFModel:
    """Describe the file. Raises ``UnsupportedModelError`` where GGUF, or a reader of it, would not mean the same."""
    opened = open_model(source, "float32", quantization="none")
    config, family = opened.model.config, opened.family.name
    if family not in _ARCHITECTURES:
        raise UnsupportedModelError(f"{source.path}: models of the family {family!r} cannot be written as .gguf files; "
                                    f"those of {', '.join(sorted(_ARCHITECTURES))} can, and any can be written as int8")
    architecture = _ARCHITECTURES[family]
    plan = opened.family.weight_map(opened.model, source.tensors)
    names = [piece.name for pieces in plan.values() for piece in pieces]
    metadata = {"general.type": "model", "general.name": source.name, **_METADATA[architecture](config, source),
                **tokenizer_metadata(source, config.vocab_size)}
    tensors = list(_tensors(source, names, ARCHITECTURES[architecture], config))
    return GGUFModel(architecture, [_field(name, value) for name, value in metadata.items()], tensors)


def _llama_metadata(config: DecoderConfig, source: ModelSource) -> dict[str, Any]:
    if config.sliding_window is not None and config.sliding_window < config.max_position_embeddings:
        raise UnsupportedModelError(f"{source.path}: sliding_window={config.sliding_window} cannot be said in a .gguf "
                                    "file of the architecture 'llama', whose attention is full; write it as int8")
    rope = _writable_rope(config, source)
    metadata: dict[str, Any] = {
        "block_count": config.num_layers, "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads, "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim, "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps), "rope.freq_base": float(rope.theta),
        "rope.dimension_count": config.head_dim, "vocab_size": config.vocab_size,
    }
    if rope.kind == "linear":
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": float(rope.factor)}
    return {f"llama.{name}": value for name, value in metadata.items()}


def _writable_rope(config: DecoderConfig, source: ModelSource) -> RopeConfig:
    rope = config.rope
    if rope is None or rope.kind not in ("default", "linear", "llama3") or rope.rotary_dim is not None:
        raise UnsupportedModelError(f"{source.path}: of rotary embeddings, those of whole heads and of the kinds "
                                    "default, linear and llama3 can be written as .gguf files; write it as int8")
    return rope


_METADATA: dict[str, Callable[[DecoderConfig, ModelSource], dict[str, Any]]] = {"llama": _llama_metadata}
"""By GGUF architecture."""
_ARCHITECTURES = {"llama": "llama", "mistral": "llama"}
"""By family."""


def _tensors(source: ModelSource, names: list[str], architecture: Architecture, config: DecoderConfig
             ) -> Iterator[ModelTensor]:
    theirs = {ours: theirs for theirs, ours in architecture.tensors.items()}
    heads = {"num_attention_heads": config.num_heads, "num_key_value_heads": config.num_kv_heads}
    rope = _writable_rope(config, source)
    if rope.kind == "llama3" or rope.frequency_divisors is not None:
        divisors = frequency_divisors(rope, config.head_dim)
        yield ModelTensor("rope_freqs.weight", "", divisors.shape, lambda start, stop: divisors)
    for name in names:
        layer = re.search(r"\.layers\.(\d+)\.", name)
        pattern = name if layer is None else name.replace(layer[0], ".layers.{}.", 1)
        order = architecture.permuted.get(theirs[pattern])
        read = _reader(source, name, None if order is None else heads[order])
        yield ModelTensor(theirs[pattern].format("" if layer is None else layer[1]), name, source.tensors[name].shape,
                          read)


def _reader(source: ModelSource, name: str, heads: int | None) -> Callable[[int, int], np.ndarray]:
    """Reads a tensor's rows. heads: of a projection whose rows llama.cpp reorders."""
    shape = source.tensors[name].shape

    def plain(start: int, stop: int) -> np.ndarray:
        rows = np.empty((stop - start, *shape[1:]) if len(shape) > 1 else shape, np.float32)
        source.read_rows(name, start, stop, rows)
        return rows

    def reordered(start: int, stop: int) -> np.ndarray:
        # Whole heads are read, as rows change places within them.
        rows, vector = shape[0], len(shape) == 1
        size = rows // (heads or 1)
        first, last = (0, rows) if vector else (start // size * size, -(-stop // size) * size)
        theirs = plain(0, 1) if vector else plain(first, last)
        ours = np.empty_like(theirs)
        ours[unpermuted_rows(last - first, (last - first) // size)] = theirs
        return ours if vector else ours[start - first : stop - first]

    return plain if heads is None else reordered


def _field(name: str, value: Any) -> Field:
    from gguf import GGUFValueType as Kind

    kinds: Mapping[type, Kind] = {bool: Kind.BOOL, int: Kind.UINT32, float: Kind.FLOAT32, str: Kind.STRING}
    if isinstance(value, np.ndarray):
        return Field(name, value.tolist(), Kind.ARRAY, {"i": Kind.INT32, "f": Kind.FLOAT32}[value.dtype.kind])
    if isinstance(value, list):
        return Field(name, value, Kind.ARRAY, Kind.STRING)
    return Field(name, value, kinds[type(value)])
