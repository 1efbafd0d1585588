"""Phi-3.5 MoE: two of sixteen experts, chosen one after the other, layer normalization, and longrope with factors of
cosines and sines that its config states.

Source: Abdin et al. 2024, Phi-3 Technical Report; ``PhimoeConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, layer_norm, require_activation, required, size
from jaxllm.models.families.names import LLAMA_NAMES, Names, expert_names
from jaxllm.models.families.rope import rope_config
from jaxllm.models.rope import require_positive

ARCHITECTURES = ("PhimoeForCausalLM", "PhiMoEForCausalLM")

_DEFAULTS = {"num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 2, "router_jitter_noise": 0.01,
             "max_position_embeddings": 131_072}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    hf = {**_DEFAULTS, **hf}
    bias = flag(hf, "attention_bias", False)
    fields = common_fields(hf) | layer_norm(hf, "rms_norm_eps")
    return DecoderConfig(
        family="phimoe",
        **fields,
        rope=rope_config(_with_attention_factor(hf), theta=1e6),
        sliding_window=hf.get("sliding_window"),
        attention_bias=bias,
        attention_output_bias=bias,
        head_bias=flag(hf, "lm_head_bias", False),
        moe=MoEConfig(num_experts=size(hf, "num_local_experts"), experts_per_token=size(hf, "num_experts_per_tok"),
                      expert_size=fields["intermediate_size"], scores="sparsemixer",
                      nearness=hf["router_jitter_noise"]),
    )


def names(config: DecoderConfig) -> Names:
    """Of a checkpoint, which has the experts' matrices apart."""
    return {**LLAMA_NAMES, **expert_names(config, "model.layers.{}.block_sparse_moe", ("w1", "w3"), "w2")}


def _with_attention_factor(hf: HFConfig) -> HFConfig:
    """The config with ``long_mscale`` or ``short_mscale`` as what it is, longrope's factor of cosines and sines: the
    one that goes with the frequencies, which are those for long texts wherever the context is longer than the original
    one."""
    key = "rope_parameters" if hf.get("rope_parameters") else "rope_scaling"
    parameters = hf.get(key)
    if not isinstance(parameters, Mapping) or parameters.get("rope_type", parameters.get("type")) != "longrope":
        return hf
    original = required(parameters, "original_max_position_embeddings")
    require_positive("rope original_max_position_embeddings", original)
    require_positive("max_position_embeddings", hf["max_position_embeddings"])
    scale = required(parameters, "long_mscale" if hf["max_position_embeddings"] > original else "short_mscale")
    return {**hf, key: {**parameters, "attention_factor": scale}}
