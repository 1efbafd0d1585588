"""Hunyuan, dense: Llama's layers with norms of q and k after the rotary embedding.

Source: Tencent 2025; ``HunYuanDenseV1Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, require_activation
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("HunYuanDenseV1ForCausalLM",)
NAMES = {
    **LLAMA_NAMES,
    "layers.{}.attention.q_norm": ("model.layers.{}.self_attn.query_layernorm",),
    "layers.{}.attention.k_norm": ("model.layers.{}.self_attn.key_layernorm",),
}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    bias = flag(hf, "attention_bias", False)
    return DecoderConfig(
        family="hunyuan_v1_dense",
        **common_fields(hf) | {"norm_eps": hf.get("rms_norm_eps", 1e-5)},
        rope=rope_config(hf),
        attention_bias=bias,
        attention_output_bias=bias,
        qk_norm="head",
        qk_norm_after_rope=True,
    )
