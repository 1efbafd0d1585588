"""OLMoE: many small experts, and norms of q and k over all heads.

Source: Muennighoff et al. 2024, OLMoE: Open Mixture-of-Experts Language Models; ``OlmoeConfig`` of Hugging Face
transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, refuse, require_activation, size
from jaxllm.models.families.names import LLAMA_NAMES, QK_NORM_NAMES, Names, expert_names
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("OlmoeForCausalLM",)

_DEFAULTS = {"num_experts": 64, "num_experts_per_tok": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 4096}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    refuse(hf, "clip_qkv")
    hf = {**_DEFAULTS, **hf}
    bias = flag(hf, "attention_bias", False)
    fields = common_fields(hf)
    return DecoderConfig(
        family="olmoe",
        **fields,
        rope=rope_config(hf),
        attention_bias=bias,
        attention_output_bias=bias,
        qk_norm="all",
        moe=MoEConfig(num_experts=size(hf, "num_experts"), experts_per_token=size(hf, "num_experts_per_tok"),
                      expert_size=fields["intermediate_size"], normalize=flag(hf, "norm_topk_prob", False)),
    )


def names(config: DecoderConfig) -> Names:
    """Of a checkpoint, which has the experts' matrices apart."""
    return {**LLAMA_NAMES, **QK_NORM_NAMES, **expert_names(config, "model.layers.{}.mlp")}
