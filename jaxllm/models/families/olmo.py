"""OLMo 2: norms after attention and MLP instead of before, and norms of q and k over all heads.

Source: OLMo Team 2024, 2 OLMo 2 Furious; ``Olmo2Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import (
    LLAMA_NAMES,
    QK_NORM_NAMES,
    HFConfig,
    common_fields,
    require_activation,
    rope_config,
)

ARCHITECTURES = ("Olmo2ForCausalLM",)
NAMES = {
    **{ours: theirs for ours, theirs in LLAMA_NAMES.items() if ours not in ("layers.{}.attention_norm",
                                                                            "layers.{}.mlp_norm")},
    **QK_NORM_NAMES,
    "layers.{}.attention_post_norm": ("model.layers.{}.post_attention_layernorm",),
    "layers.{}.mlp_post_norm": ("model.layers.{}.post_feedforward_layernorm",),
}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    bias = bool(hf.get("attention_bias", False))
    return DecoderConfig(
        family="olmo2",
        **common_fields(hf),
        rope=rope_config(hf, theta=500_000.0),
        attention_bias=bias,
        attention_output_bias=bias,
        qk_norm="all",
        pre_norms=False,
        post_norms=True,
    )
