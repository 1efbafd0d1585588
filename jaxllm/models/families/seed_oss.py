"""Seed-OSS: Llama's layers with biases of q, k and v.

Source: ``SeedOssConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, require_activation
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("SeedOssForCausalLM",)
NAMES = LLAMA_NAMES


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    return DecoderConfig(
        family="seed_oss",
        **common_fields(hf),
        rope=rope_config(hf),
        attention_bias=bool(hf.get("attention_bias", True)),
        attention_output_bias=bool(hf.get("attention_out_bias", False)),
        mlp_bias=bool(hf.get("mlp_bias", False)),
    )
