"""Llama 4, text: attention in chunks, layers that see everything without a rotary embedding, and experts.

Sources: Meta 2025, The Llama 4 herd; ``Llama4TextConfig`` of Hugging Face transformers. The temperature of attention is
that of Nakanishi 2025, Scalable-Softmax Is Superior for Attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, refuse, require_activation, size
from jaxllm.models.families.names import LLAMA_NAMES, Names, Stored, by_expert
from jaxllm.models.families.rope import rope_config
from jaxllm.models.families.smollm3 import unrotated_layers

ARCHITECTURES = ("Llama4ForCausalLM",)


def _transposed(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Of experts' matrices ``[experts, in, out]``."""
    return tensor.swapaxes(1, 2).reshape(-1, tensor.shape[1])


def _to_transposed(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    return by_expert(tensor, config).swapaxes(1, 2)


_MLP = "model.layers.{}.feed_forward"
NAMES: Names = {
    **LLAMA_NAMES,
    "layers.{}.mlp.gate_up": (f"{_MLP}.gate_proj", f"{_MLP}.up_proj"),
    "layers.{}.mlp.down": (f"{_MLP}.down_proj",),
    "layers.{}.mlp.router": (f"{_MLP}.router",),
    "layers.{}.mlp.shared.gate_up": (f"{_MLP}.shared_expert.gate_proj", f"{_MLP}.shared_expert.up_proj"),
    "layers.{}.mlp.shared.down": (f"{_MLP}.shared_expert.down_proj",),
    "layers.{}.mlp.experts.gate_up.weight": (Stored(f"{_MLP}.experts.gate_up_proj", _transposed, _to_transposed),),
    "layers.{}.mlp.experts.down.weight": (Stored(f"{_MLP}.experts.down_proj", _transposed, _to_transposed),),
}
_DEFAULTS = {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
             "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "num_experts_per_tok": 1,
             "num_local_experts": 16, "interleave_moe_layer_step": 1, "floor_scale": 8192}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    hf = {**_DEFAULTS, **hf}
    fields, bias = common_fields(hf), flag(hf, "attention_bias", False)
    unrotated, chunk = unrotated_layers(hf), hf.get("attention_chunk_size", 8192)
    full = tuple(range(fields["num_layers"])) if chunk is None else unrotated
    kinds = ["full_attention" if layer in full else "chunked_attention" for layer in range(fields["num_layers"])]
    refuse(hf, "layer_types", kinds)
    return DecoderConfig(
        family="llama4",
        **fields | {"intermediate_size": size(hf, "intermediate_size_mlp")},
        rope=rope_config(hf, theta=500_000.0, interleaved=True),
        unrotated_layers=unrotated,
        attention_bias=bias,
        attention_output_bias=bias,
        attention_chunk=chunk,
        full_layers=full,
        attention_temperature=hf.get("attn_scale", 0.1) if flag(hf, "attn_temperature_tuning", True) else None,
        temperature_interval=size(hf, "floor_scale"),
        qk_norm="unit" if flag(hf, "use_qk_norm", True) else "none",
        moe=_experts(hf, fields),
    )


def _experts(hf: HFConfig, fields: dict[str, Any]) -> MoEConfig | None:
    """The experts of the layers that ``moe_layers`` lists, or else of every so-manieth."""
    layers, step, listed = fields["num_layers"], size(hf, "interleave_moe_layer_step"), hf.get("moe_layers")
    if listed is None:
        listed = list(range(step - 1, layers, step))
    if not isinstance(listed, list) or not all(layer in range(layers) for layer in listed):
        raise UnsupportedModelError(f"the model's config has moe_layers={listed!r}; a list of numbers of its {layers} "
                                    "layers is needed")
    if not listed:
        return None
    width = fields["intermediate_size"]
    return MoEConfig(num_experts=size(hf, "num_local_experts"), experts_per_token=size(hf, "num_experts_per_tok"),
                     expert_size=width, shared_size=width, scores="sigmoid", weigh_inputs=True,
                     dense_layers=tuple(layer for layer in range(layers) if layer not in listed))
