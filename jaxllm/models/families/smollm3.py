"""SmolLM3: Llama's layers, every fourth without rotary embedding (Yang et al. 2025, RNoPE).

Source: ``SmolLM3Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, require_activation, size
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("SmolLM3ForCausalLM",)
NAMES = LLAMA_NAMES


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    if hf.get("use_sliding_window"):
        raise UnsupportedModelError("the model's config has use_sliding_window=true, which no published SmolLM3 has; "
                                    "it is not supported")
    bias = bool(hf.get("attention_bias", False))
    return DecoderConfig(
        family="smollm3",
        **common_fields(hf) | {"tie_word_embeddings": bool(hf.get("tie_word_embeddings", True))},
        rope=rope_config(hf, theta=2e6),
        unrotated_layers=unrotated_layers(hf),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bool(hf.get("mlp_bias", False)),
    )


def unrotated_layers(hf: HFConfig) -> tuple[int, ...]:
    """Those that ``no_rope_layers`` lists, or else every so-manieth."""
    layers, rotated = size(hf, "num_hidden_layers"), hf.get("no_rope_layers")
    if rotated is None:
        interval = size({"no_rope_layer_interval": 4, **hf}, "no_rope_layer_interval")
        return tuple(range(interval - 1, layers, interval))
    # The name notwithstanding, 1 stands for a layer with rotary embedding.
    if not isinstance(rotated, list) or len(rotated) != layers or not set(rotated) <= {0, 1}:
        raise UnsupportedModelError(f"the model's config has no_rope_layers={rotated!r}; a list of {layers} is needed, "
                                    "each 0 or 1")
    return tuple(layer for layer, flag in enumerate(rotated) if not flag)
