"""Granite 3: Llama's layers with multipliers (Yang et al. 2022, Tensor Programs V), dense or with experts.

Source: ``GraniteConfig``, ``GraniteMoeConfig`` and ``GraniteMoeSharedConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from typing import Any

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.families.common import HFConfig, common_fields, require_activation, size
from jaxllm.models.families.names import LLAMA_NAMES, Names, Stored, rows_of_experts
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("GraniteForCausalLM",)
NAMES = LLAMA_NAMES
MOE_ARCHITECTURES = ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")
MOE_NAMES: Names = {
    **LLAMA_NAMES,
    "layers.{}.mlp.router": ("model.layers.{}.block_sparse_moe.router.layer",),
    "layers.{}.mlp.experts.gate_up": (Stored("model.layers.{}.block_sparse_moe.input_linear", rows_of_experts),),
    "layers.{}.mlp.experts.down": (Stored("model.layers.{}.block_sparse_moe.output_linear", rows_of_experts),),
    "layers.{}.mlp.shared.gate_up": ("model.layers.{}.shared_mlp.input_linear",),
    "layers.{}.mlp.shared.down": ("model.layers.{}.shared_mlp.output_linear",),
}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a dense ``config.json`` means."""
    return DecoderConfig(family="granite", **_shared_fields(hf), mlp_bias=bool(hf.get("mlp_bias", False)))


def moe_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` with experts means. An MLP that all tokens share has no gate."""
    hf = {"num_local_experts": 8, "num_experts_per_tok": 2, **hf}
    fields = _shared_fields(hf)
    experts = MoEConfig(
        num_experts=size(hf, "num_local_experts"),
        experts_per_token=size(hf, "num_experts_per_tok"),
        expert_size=fields["intermediate_size"],
        normalize=True,
        shared_size=hf.get("shared_intermediate_size") or None,
    )
    return DecoderConfig(family="granitemoe", **fields, moe=experts)


def _shared_fields(hf: HFConfig) -> dict[str, Any]:
    require_activation(hf, "hidden_act", "silu")
    bias = bool(hf.get("attention_bias", False))
    return common_fields(hf) | {
        "rope": rope_config(hf),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "embedding_scale": hf.get("embedding_multiplier", 1.0),
        "attention_scale": hf.get("attention_multiplier", 1.0),
        "residual_scale": hf.get("residual_multiplier", 1.0),
        "logit_scale": 1 / _positive(hf, "logits_scaling"),
    }


def _positive(hf: HFConfig, name: str) -> float:
    value = hf.get(name, 1.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise UnsupportedModelError(f"the model's config has {name}={value!r}; a positive number is needed")
    return float(value)
