"""Phi-3, Phi-3.5 and Phi-4: Llama's layers with fused projections; long contexts by longrope.

Source: Abdin et al. 2024, Phi-3 Technical Report; ``Phi3Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, require_activation
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("Phi3ForCausalLM",)
NAMES = {
    **LLAMA_NAMES,
    "layers.{}.attention.qkv": ("model.layers.{}.self_attn.qkv_proj",),
    "layers.{}.mlp.gate_up": ("model.layers.{}.mlp.gate_up_proj",),
}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    return DecoderConfig(
        family="phi3", **common_fields(hf), rope=rope_config(hf), sliding_window=hf.get("sliding_window"))
