"""Which family serves which architecture."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.families import llama


@dataclasses.dataclass(frozen=True)
class Family:
    """What a family file provides."""

    name: str
    architectures: tuple[str, ...]
    decoder_config: Callable[[Mapping[str, Any]], DecoderConfig]
    weight_map: Callable[[DecoderConfig], dict[str, tuple[str, ...]]]
    ignored_tensors: Callable[[DecoderConfig], tuple[str, ...]]


FAMILIES = (
    Family("llama", llama.ARCHITECTURES, llama.decoder_config, llama.weight_map, llama.ignored_tensors),
)


def family_of(hf_config: Mapping[str, Any]) -> Family:
    """The family that serves a ``config.json``; ``UnsupportedModelError`` names the nearest ones otherwise."""
    architectures = hf_config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise UnsupportedModelError(f"the model's config has architectures={architectures!r}; a list of names is "
                                    "needed")
    for family in FAMILIES:
        if any(architecture in family.architectures for architecture in architectures):
            _refuse_quantized(hf_config)
            return family
    known = [architecture for family in FAMILIES for architecture in family.architectures]
    if not architectures:
        raise UnsupportedModelError(f"the model's config names no architectures; supported: {', '.join(known)}")
    near = difflib.get_close_matches(architectures[0], known, n=3, cutoff=0.5) or known
    raise UnsupportedModelError(
        f"architecture {architectures[0]!r} is not supported; the nearest that are: {', '.join(near)}"
    )


def _refuse_quantized(hf_config: Mapping[str, Any]) -> None:
    """Quantized tensors have other names, and some the same names and other meanings. Sources of those that can be read
    show the config from before (``jaxllm.weights.compressed_tensors``)."""
    quantization = hf_config.get("quantization_config") or hf_config.get("compression_config")
    if quantization:
        method = quantization.get("quant_method", "?") if isinstance(quantization, Mapping) else quantization
        raise UnsupportedModelError(f"the model's config says that it is quantized (quant_method={method!r}), which is "
                                    "not supported: compressed-tensors' int8 of weights is, and .gguf files are. Give "
                                    "the checkpoint that it was made from")
