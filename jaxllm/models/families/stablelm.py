"""StableLM: Llama's layers with layer normalization and a partial rotary embedding; StableLM 2 12B adds norms of each
head of q and k, and attention and MLP side by side.

Source: ``StableLmConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, in_llamas_words, layer_norm, require_activation
from jaxllm.models.families.names import LLAMA_NAMES, Names
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("StableLmForCausalLM", "StableLMEpochForCausalLM")


def names(config: DecoderConfig) -> Names:
    """Its weight names: the norm of q or k is a module for each head."""
    at = "model.layers.{}.self_attn"
    return {
        **LLAMA_NAMES,
        "layers.{}.attention.q_norm": tuple(f"{at}.q_layernorm.norms.{head}" for head in range(config.num_heads)),
        "layers.{}.attention.k_norm": tuple(f"{at}.k_layernorm.norms.{head}" for head in range(config.num_kv_heads)),
    }


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    hf = in_llamas_words(hf, {"rope_pct": "partial_rotary_factor", "norm_eps": "layer_norm_eps"})
    require_activation(hf, "hidden_act", "silu")
    parallel = flag(hf, "use_parallel_residual", False)
    return DecoderConfig(
        family="stablelm",
        **common_fields(hf) | layer_norm(hf, "layer_norm_eps"),
        rope=rope_config(hf, partial=0.25),
        attention_bias=flag(hf, "use_qkv_bias", False),
        qk_norm="heads" if flag(hf, "qk_layernorm", False) else "none",
        parallel_residual=parallel,
        shared_norm=parallel,
    )
