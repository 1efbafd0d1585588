"""Granite 3, dense: Llama's layers with multipliers (Yang et al. 2022, Tensor Programs V).

Source: ``GraniteConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, require_activation
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("GraniteForCausalLM",)
NAMES = LLAMA_NAMES


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    bias = bool(hf.get("attention_bias", False))
    return DecoderConfig(
        family="granite",
        **common_fields(hf),
        rope=rope_config(hf),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bool(hf.get("mlp_bias", False)),
        embedding_scale=hf.get("embedding_multiplier", 1.0),
        attention_scale=hf.get("attention_multiplier", 1.0),
        residual_scale=hf.get("residual_multiplier", 1.0),
        logit_scale=1 / _positive(hf, "logits_scaling"),
    )


def _positive(hf: HFConfig, name: str) -> float:
    value = hf.get(name, 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UnsupportedModelError(f"the model's config has {name}={value!r}; a positive number is needed")
    return float(value)
