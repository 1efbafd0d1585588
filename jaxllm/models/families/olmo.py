"""OLMo 2: norms after attention and MLP instead of before, and norms of q and k over all heads. OLMo 3 adds a window in
three of four layers, which keep the plain rotary embedding where the others' is extended.

Source: OLMo Team 2024, 2 OLMo 2 Furious; OLMo Team 2025, OLMo 3; ``Olmo2Config`` and ``Olmo3Config`` of Hugging Face
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, full_layers, require_activation
from jaxllm.models.families.names import LLAMA_NAMES, QK_NORM_NAMES
from jaxllm.models.families.rope import rope_config

OLMO2_ARCHITECTURES = ("Olmo2ForCausalLM",)
OLMO3_ARCHITECTURES = ("Olmo3ForCausalLM",)
NAMES = {
    **LLAMA_NAMES,
    **QK_NORM_NAMES,
    "layers.{}.attention_post_norm": ("model.layers.{}.post_attention_layernorm",),
    "layers.{}.mlp_post_norm": ("model.layers.{}.post_feedforward_layernorm",),
}


def olmo2_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that OLMo 2's ``config.json`` means."""
    return DecoderConfig(family="olmo2", **_shared_fields(hf), rope=rope_config(hf, theta=500_000.0))


def olmo3_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that OLMo 3's ``config.json`` means."""
    ropes = hf.get("rope_parameters")
    if isinstance(ropes, Mapping) and "full_attention" in ropes:
        rope, local = (rope_config({**hf, "rope_parameters": ropes.get(kind)}, theta=500_000.0)
                       for kind in ("full_attention", "sliding_attention"))
    else:
        rope = rope_config(hf, theta=500_000.0)
        local = rope_config({"rope_theta": rope.theta})
    return DecoderConfig(
        family="olmo3",
        **_shared_fields(hf) | {"norm_eps": hf.get("rms_norm_eps", 1e-5)},
        rope=rope,
        local_rope=None if local == rope else local,
        sliding_window=hf.get("sliding_window", 4096),
        full_layers=full_layers(hf, lambda layer: (layer + 1) % 4 == 0),
    )


def _shared_fields(hf: HFConfig) -> dict[str, Any]:
    require_activation(hf, "hidden_act", "silu")
    bias = bool(hf.get("attention_bias", False))
    return common_fields(hf) | {
        "attention_bias": bias,
        "attention_output_bias": bias,
        "qk_norm": "all",
        "pre_norms": False,
        "post_norms": True,
    }
