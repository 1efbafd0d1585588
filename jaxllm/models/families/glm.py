"""GLM-4: an interleaved rotary embedding of half of each head; the models of 2025 (Glm4) add norms after attention and
MLP.

Source: GLM Team 2024, ChatGLM; ``GlmConfig`` and ``Glm4Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from typing import Any

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, require_activation
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

GLM_ARCHITECTURES = ("GlmForCausalLM",)
GLM_NAMES = {**LLAMA_NAMES, "layers.{}.mlp.gate_up": ("model.layers.{}.mlp.gate_up_proj",)}
GLM4_ARCHITECTURES = ("Glm4ForCausalLM",)
GLM4_NAMES = {
    **GLM_NAMES,
    "layers.{}.attention_post_norm": ("model.layers.{}.post_self_attn_layernorm",),
    "layers.{}.mlp_post_norm": ("model.layers.{}.post_mlp_layernorm",),
}


def glm_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` of 2024's models means."""
    return DecoderConfig(family="glm", **_shared_fields(hf))


def glm4_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` of 2025's models means."""
    return DecoderConfig(family="glm4", **_shared_fields(hf), post_norms=True)


def _shared_fields(hf: HFConfig) -> dict[str, Any]:
    require_activation(hf, "hidden_act", "silu")
    hf = {"head_dim": 128, **hf}
    return common_fields(hf) | {
        "rope": rope_config(hf, partial=0.5, interleaved=True),
        "attention_bias": flag(hf, "attention_bias", True),
    }
