"""Cohere's Command R and R+ (Cohere), and Command R7B and A (Cohere 2): attention and MLP side by side behind one layer
norm without bias, an interleaved rotary embedding, scaled logits. Command R+ adds norms of each head of q and k, Cohere
2 a window in three of four layers and no rotary embedding in the fourth.

Source: ``CohereConfig`` and ``Cohere2Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from typing import Any

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import (
    HFConfig,
    common_fields,
    flag,
    full_layers,
    layer_norm,
    refuse,
    require_activation,
    size,
)
from jaxllm.models.families.names import LLAMA_NAMES, Names, Stored, flat
from jaxllm.models.families.rope import rope_config

COHERE_ARCHITECTURES = ("CohereForCausalLM",)
COHERE_NAMES: Names = {
    **LLAMA_NAMES,
    "layers.{}.attention.q_norm": (Stored("model.layers.{}.self_attn.q_norm", flat),),
    "layers.{}.attention.k_norm": (Stored("model.layers.{}.self_attn.k_norm", flat),),
}
COHERE2_ARCHITECTURES = ("Cohere2ForCausalLM",)
COHERE2_NAMES = LLAMA_NAMES


def cohere_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that Command R's ``config.json`` means."""
    return DecoderConfig(
        family="cohere",
        **_shared_fields(hf, theta=500_000.0),
        qk_norm="heads" if flag(hf, "use_qk_norm", False) else "none",
    )


def cohere2_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that Command R7B's ``config.json`` means."""
    pattern = size({"sliding_window_pattern": 4, **hf}, "sliding_window_pattern")
    full = full_layers(hf, lambda layer: (layer + 1) % pattern == 0)
    return DecoderConfig(
        family="cohere2",
        **_shared_fields(hf, theta=10_000.0),
        sliding_window=hf.get("sliding_window", 4096),
        full_layers=full,
        unrotated_layers=full,
    )


def _shared_fields(hf: HFConfig, theta: float) -> dict[str, Any]:
    require_activation(hf, "hidden_act", "silu")
    refuse(hf, "use_parallel_block", True)
    refuse(hf, "use_gated_activation", True)
    bias = flag(hf, "attention_bias", False)
    return common_fields(hf) | layer_norm(hf, "layer_norm_eps", bias=False) | {
        "tie_word_embeddings": flag(hf, "tie_word_embeddings", True),
        "rope": rope_config(hf, theta=theta, interleaved=True),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "parallel_residual": True,
        "shared_norm": True,
        "logit_scale": hf.get("logit_scale", 0.0625),
    }
