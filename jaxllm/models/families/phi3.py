"""Phi-3 and Phi-4: Llama's layers with fused projections.

Their long-context variants (longrope) and Phi-4-mini (partial rotary embedding) are refused.

Source: Abdin et al. 2024, Phi-3 Technical Report; ``Phi3Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import LLAMA_NAMES, HFConfig, common_fields, require_activation, rope_config

ARCHITECTURES = ("Phi3ForCausalLM",)
NAMES = {
    **LLAMA_NAMES,
    "layers.{}.attention.qkv": ("model.layers.{}.self_attn.qkv_proj",),
    "layers.{}.mlp.gate_up": ("model.layers.{}.mlp.gate_up_proj",),
}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    parameters = hf.get("rope_parameters") or {}
    partial = parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
    if partial != 1:
        raise UnsupportedModelError(f"the model's config has partial_rotary_factor={partial!r}; only 1, the whole "
                                    "head, is supported")
    return DecoderConfig(
        family="phi3", **common_fields(hf), rope=rope_config(hf), sliding_window=hf.get("sliding_window"))
