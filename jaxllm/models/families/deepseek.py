"""DeepSeek V2 and V3: latent attention, and experts in all but the first layers.

Sources: DeepSeek-AI 2024, DeepSeek-V2 and DeepSeek-V3 Technical Report; ``DeepseekV2Config`` and ``DeepseekV3Config``
of Hugging Face transformers.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig, LatentConfig, MoEConfig, RopeConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, refuse, require_activation, size
from jaxllm.models.families.names import LLAMA_NAMES, Names, Stored, expert_names
from jaxllm.models.families.rope import rope_config, yarn_scale

V2_ARCHITECTURES = ("DeepseekV2ForCausalLM",)
V3_ARCHITECTURES = ("DeepseekV3ForCausalLM",)


def _up_projections(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Of each head, the rows for its key, then those for its value: ``[heads, plain_dim + v_dim, kv_rank]``."""
    return tensor.reshape(config.num_heads, -1, tensor.shape[-1])


def _key_rows(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Those for keys, transposed: what a query is multiplied by."""
    assert config.latent is not None
    return _up_projections(tensor, config)[:, :config.latent.plain_dim].swapaxes(1, 2)


def _value_rows(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    assert config.latent is not None
    return _up_projections(tensor, config)[:, config.latent.plain_dim:]


def _written_key_rows(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    return tensor.swapaxes(1, 2)


def _written_value_rows(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    return tensor


_MLP, _ATTENTION = "model.layers.{}.mlp", "model.layers.{}.self_attn"
_NAMES: Names = {
    **LLAMA_NAMES,
    "layers.{}.attention.q": (f"{_ATTENTION}.q_proj",),
    "layers.{}.attention.q_down": (f"{_ATTENTION}.q_a_proj",),
    "layers.{}.attention.q_norm": (f"{_ATTENTION}.q_a_layernorm",),
    "layers.{}.attention.q_up": (f"{_ATTENTION}.q_b_proj",),
    "layers.{}.attention.kv_down": (f"{_ATTENTION}.kv_a_proj_with_mqa",),
    "layers.{}.attention.kv_norm": (f"{_ATTENTION}.kv_a_layernorm",),
    "layers.{}.attention.k_up": (Stored(f"{_ATTENTION}.kv_b_proj", _key_rows, _written_key_rows, 0),),
    "layers.{}.attention.v_up": (Stored(f"{_ATTENTION}.kv_b_proj", _value_rows, _written_value_rows, 1),),
    "layers.{}.mlp.router.correction": (f"{_MLP}.gate.e_score_correction_bias",),
    "layers.{}.mlp.shared.gate_up": (f"{_MLP}.shared_experts.gate_proj", f"{_MLP}.shared_experts.up_proj"),
    "layers.{}.mlp.shared.down": (f"{_MLP}.shared_experts.down_proj",),
}


def names(config: DecoderConfig) -> Names:
    """Of a checkpoint, which has the experts' matrices apart."""
    return {**_NAMES, **expert_names(config, _MLP)}


def ignored(config: DecoderConfig) -> tuple[str, ...]:
    """V3's layers past the last, which guess further tokens."""
    return (rf"^model\.layers\.{config.num_layers}\.",)


def v2_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` of DeepSeek V2 means."""
    hf = {"moe_intermediate_size": 1407, "n_routed_experts": 64, "n_shared_experts": 2, **hf}
    refuse(hf, "scoring_func", "softmax")
    refuse(hf, "norm_topk_prob", False)
    refuse(hf, "topk_method", "greedy", "group_limited_greedy")
    groups = {} if hf.get("topk_method", "greedy") == "greedy" else _groups(hf)
    return DecoderConfig(family="deepseek_v2", **_fields(hf, interleaved=True), mlp_bias=flag(hf, "mlp_bias", False),
                         moe=_experts(hf, **groups))


def v3_config(hf: HFConfig) -> DecoderConfig:
    """That of V3, R1 and V3.1."""
    refuse(hf, "scoring_func", "sigmoid")
    refuse(hf, "topk_method", "noaux_tc")
    hf = {"moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
          "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "first_k_dense_replace": 3,
          "max_position_embeddings": 4096, **hf}
    moe = _experts(hf, **_groups(hf), scores="sigmoid", correction=True, normalize=flag(hf, "norm_topk_prob", True),
                   group_score="two largest")
    return DecoderConfig(family="deepseek_v3", **_fields(hf, interleaved=flag(hf, "rope_interleave", True)), moe=moe)


def _groups(hf: HFConfig) -> dict[str, Any]:
    return {"groups": size(hf, "n_group"), "taken_groups": size(hf, "topk_group")}


def _experts(hf: HFConfig, **fields: Any) -> MoEConfig | None:
    """The experts of all layers but the first; ``None`` where those are all."""
    refuse(hf, "moe_layer_freq", 1)
    layers, dense = size(hf, "num_hidden_layers"), hf.get("first_k_dense_replace", 0)
    if isinstance(dense, bool) or not isinstance(dense, int) or dense < 0:
        raise UnsupportedModelError(f"the model's config has first_k_dense_replace={dense!r}; an integer from 0 on is "
                                    "needed")
    if dense >= layers:
        return None
    width = size(hf, "moe_intermediate_size")
    shared = width * size(hf, "n_shared_experts") if hf.get("n_shared_experts") else None
    return MoEConfig(num_experts=size(hf, "n_routed_experts"), experts_per_token=size(hf, "num_experts_per_tok"),
                     expert_size=width, dense_layers=tuple(range(dense)), shared_size=shared,
                     scale=hf.get("routed_scaling_factor", 1.0), **fields)


def _fields(hf: HFConfig, *, interleaved: bool) -> dict[str, Any]:
    require_activation(hf, "hidden_act", "silu")
    hf = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
          **hf}
    bias = flag(hf, "attention_bias", False)
    q_rank = None if hf.get("q_lora_rank") is None else size(hf, "q_lora_rank")
    latent = LatentConfig(size(hf, "kv_lora_rank"), q_rank, size(hf, "qk_nope_head_dim"), size(hf, "qk_rope_head_dim"),
                          size(hf, "v_head_dim"))
    return common_fields(hf) | {
        "num_kv_heads": 1,
        "head_dim": latent.cached_dim,
        "latent": latent,
        "rope": _rope(hf, latent, interleaved),
        "attention_scale": (latent.plain_dim + latent.rope_dim) ** -0.5 * _score_factor(hf),
        "attention_bias": bias,
        "attention_output_bias": bias,
    }


def _rope(hf: HFConfig, latent: LatentConfig, interleaved: bool) -> RopeConfig:
    rope = rope_config({**hf, "head_dim": latent.rope_dim, "partial_rotary_factor": 1.0}, interleaved=interleaved)
    return dataclasses.replace(rope, rotary_dim=latent.rope_dim)


def _score_factor(hf: HFConfig) -> float:
    """Of the scores of contexts that were extended by yarn: the square of what queries and keys would be scaled by."""
    parameters = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if parameters.get("rope_type", parameters.get("type", "default")) == "default":
        return 1.0
    weight = parameters.get("mscale_all_dim") or 0
    return yarn_scale(parameters["factor"], weight) ** 2 if weight else 1.0
