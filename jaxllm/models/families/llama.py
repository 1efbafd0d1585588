"""The Llama family: Llama 1 to 3.3, SmolLM2, TinyLlama, and whatever shares their layers.

Source: ``LlamaConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, require_activation
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("LlamaForCausalLM",)
NAMES = LLAMA_NAMES


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    bias = bool(hf.get("attention_bias", False))
    return DecoderConfig(
        family="llama",
        **common_fields(hf),
        rope=rope_config(hf),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bool(hf.get("mlp_bias", False)),
    )
