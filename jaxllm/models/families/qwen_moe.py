"""Qwen 1.5 and 2 with experts, beside which all tokens take a gated one, and Qwen 3 with experts alone.

Source: Qwen2 Technical Report (2024), Qwen3 Technical Report (2025); ``Qwen2MoeConfig`` and ``Qwen3MoeConfig`` of
Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.families.common import (
    HFConfig,
    common_fields,
    flag,
    full_layers,
    in_llamas_words,
    require_activation,
    size,
)
from jaxllm.models.families.names import LLAMA_NAMES, QK_NORM_NAMES, Names, Stored, expert_names, one_row
from jaxllm.models.families.rope import rope_config

QWEN2_ARCHITECTURES = ("Qwen2MoeForCausalLM",)
QWEN3_ARCHITECTURES = ("Qwen3MoeForCausalLM",)

_QWEN2_DEFAULTS = {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
                   "shared_expert_intermediate_size": 5632, "max_position_embeddings": 32768}
_QWEN3_DEFAULTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
                   "num_key_value_heads": 4, "max_position_embeddings": 32768}


def qwen2_moe_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` of Qwen 1.5 or 2 with experts means."""
    hf = {**_QWEN2_DEFAULTS, **hf}
    fields = _shared_fields(hf)
    if flag(hf, "use_sliding_window", False):
        windowed = hf.get("max_window_layers", 28)
        fields |= {"sliding_window": hf.get("sliding_window", 4096),
                   "full_layers": full_layers(hf, lambda layer: layer % 2 == 1 or layer >= windowed)}
    return DecoderConfig(
        family="qwen2_moe",
        **fields,
        attention_bias=flag(hf, "qkv_bias", True),
        moe=_experts(hf, shared_size=size(hf, "shared_expert_intermediate_size"), shared_gate=True),
    )


def qwen3_moe_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` of Qwen 3 with experts means."""
    hf = {**_QWEN3_DEFAULTS, **in_llamas_words(hf, {"num_local_experts": "num_experts"})}
    bias = flag(hf, "attention_bias", False)
    window = hf.get("sliding_window", 4096) if flag(hf, "use_sliding_window", False) else None
    return DecoderConfig(
        family="qwen3_moe",
        **_shared_fields(hf),
        sliding_window=window,
        attention_bias=bias,
        attention_output_bias=bias,
        qk_norm="head",
        moe=_experts(hf),
    )


def qwen2_moe_names(config: DecoderConfig) -> Names:
    """Of a checkpoint, which has the experts' matrices apart."""
    return {
        **LLAMA_NAMES,
        **expert_names(config, "model.layers.{}.mlp"),
        "layers.{}.mlp.shared.gate_up": (
            "model.layers.{}.mlp.shared_expert.gate_proj", "model.layers.{}.mlp.shared_expert.up_proj"),
        "layers.{}.mlp.shared.down": ("model.layers.{}.mlp.shared_expert.down_proj",),
        "layers.{}.mlp.shared_gate": (Stored("model.layers.{}.mlp.shared_expert_gate", one_row),),
    }


def qwen3_moe_names(config: DecoderConfig) -> Names:
    """Of a checkpoint, which has the experts' matrices apart."""
    return {**LLAMA_NAMES, **QK_NORM_NAMES, **expert_names(config, "model.layers.{}.mlp")}


def _shared_fields(hf: HFConfig) -> dict[str, Any]:
    require_activation(hf, "hidden_act", "silu")
    return common_fields(hf) | {"rope": rope_config(hf)}


def _experts(hf: Mapping[str, Any], **shared: Any) -> MoEConfig:
    """Every ``decoder_sparse_step``-th layer has experts, those of ``mlp_only_layers`` excepted."""
    layers = range(size(hf, "num_hidden_layers"))
    step = size({"decoder_sparse_step": 1, **hf}, "decoder_sparse_step")
    dense = hf.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise UnsupportedModelError(f"the model's config has mlp_only_layers={dense!r}; a list of layers' numbers is "
                                    "needed")
    return MoEConfig(
        num_experts=size(hf, "num_experts"),
        experts_per_token=size(hf, "num_experts_per_tok"),
        expert_size=size(hf, "moe_intermediate_size"),
        dense_layers=tuple(layer for layer in layers if layer in dense or (layer + 1) % step),
        normalize=flag(hf, "norm_topk_prob", False),
        **shared,
    )
