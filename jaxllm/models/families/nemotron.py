"""Nemotron 3 8B, Nemotron 4 and Minitron: layer normalization with weights stored less 1, squared ReLU without a gate,
a rotary embedding of half of each head.

Source: Parmar et al. 2024, Nemotron-4 15B; ``NemotronConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, layer_norm, plain_mlp
from jaxllm.models.families.names import LLAMA_NAMES, PLAIN_MLP_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("NemotronForCausalLM",)
NAMES = {**LLAMA_NAMES, **PLAIN_MLP_NAMES}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    bias = flag(hf, "attention_bias", False)
    return DecoderConfig(
        family="nemotron",
        **common_fields(hf) | layer_norm(hf, "norm_eps") | plain_mlp(hf, "hidden_act", "relu2"),
        norm_offset=1.0,
        rope=rope_config(hf, partial=0.5),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=flag(hf, "mlp_bias", False),
    )
