"""Mixtral 8x7B and 8x22B: Mistral's layers with experts in place of MLPs.

Source: Jiang et al. 2024, Mixtral of Experts; ``MixtralConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.families.common import HFConfig, common_fields, require_activation, size
from jaxllm.models.families.names import LLAMA_NAMES, Names, expert_names
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("MixtralForCausalLM",)

_DEFAULTS = {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5,
             "max_position_embeddings": 131_072}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    hf = {**_DEFAULTS, **hf}
    fields = common_fields(hf)
    return DecoderConfig(
        family="mixtral",
        **fields,
        rope=rope_config(hf, theta=1e6),
        sliding_window=hf.get("sliding_window"),
        moe=MoEConfig(num_experts=size(hf, "num_local_experts"), experts_per_token=size(hf, "num_experts_per_tok"),
                      expert_size=fields["intermediate_size"], normalize=True),
    )


def names(config: DecoderConfig) -> Names:
    """Of a checkpoint, which has the experts' matrices apart."""
    return {**LLAMA_NAMES, **expert_names(config, "model.layers.{}.block_sparse_moe", ("w1", "w3"), "w2")}
