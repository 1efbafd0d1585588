"""Mistral 7B, Nemo and Small: Llama's layers with a sliding window, where the checkpoint has one.

Source: Jiang et al. 2023, Mistral 7B; ``MistralConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, require_activation
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("MistralForCausalLM",)
NAMES = LLAMA_NAMES


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    return DecoderConfig(
        family="mistral", **common_fields(hf), rope=rope_config(hf), sliding_window=hf.get("sliding_window"))
