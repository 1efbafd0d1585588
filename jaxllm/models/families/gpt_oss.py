"""gpt-oss: attention with sinks, windows in every other layer, and experts with clamped gates.

Sources: OpenAI 2025, gpt-oss-120b and gpt-oss-20b Model Card; ``GptOssConfig`` of Hugging Face transformers.
Checkpoints in MXFP4 are decoded where they are read (``jaxllm.weights.mxfp4``).
"""

from __future__ import annotations

import numpy as np

from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, full_layers, require_activation, size
from jaxllm.models.families.names import LLAMA_NAMES, Names, Stored, by_expert
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("GptOssForCausalLM",)


def _gate_up(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Of matrices ``[experts, in, 2 * size]`` whose columns are gate and up in turns: rows, first all of an expert's
    gate, then all of its up."""
    experts, size_in, size_out = tensor.shape
    pairs = tensor.swapaxes(1, 2).reshape(experts, size_out // 2, 2, size_in)
    return pairs.swapaxes(1, 2).reshape(-1, size_in)


def _gate_up_bias(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    return tensor.reshape(tensor.shape[0], -1, 2).swapaxes(1, 2).reshape(-1)


def _to_pairs(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """What undoes either."""
    halves = by_expert(tensor, config)
    experts, size_out, *size_in = halves.shape
    pairs = halves.reshape(experts, 2, size_out // 2, *size_in).swapaxes(1, 2).reshape(halves.shape)
    return pairs.swapaxes(1, 2) if size_in else pairs


def _down(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Of matrices ``[experts, size, out]``."""
    return tensor.swapaxes(1, 2).reshape(-1, tensor.shape[1])


def _to_down(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    return by_expert(tensor, config).swapaxes(1, 2)


def _down_bias(tensor: np.ndarray, config: DecoderConfig) -> np.ndarray:
    return tensor.reshape(-1)


_EXPERTS = "model.layers.{}.mlp.experts"
NAMES: Names = {
    **LLAMA_NAMES,
    "layers.{}.attention.sinks": ("model.layers.{}.self_attn.sinks",),
    "layers.{}.mlp.router": ("model.layers.{}.mlp.router",),
    "layers.{}.mlp.experts.gate_up.weight": (Stored(f"{_EXPERTS}.gate_up_proj", _gate_up, _to_pairs),),
    "layers.{}.mlp.experts.gate_up.bias": (Stored(f"{_EXPERTS}.gate_up_proj_bias", _gate_up_bias, _to_pairs),),
    "layers.{}.mlp.experts.down.weight": (Stored(f"{_EXPERTS}.down_proj", _down, _to_down),),
    "layers.{}.mlp.experts.down.bias": (Stored(f"{_EXPERTS}.down_proj_bias", _down_bias, by_expert),),
}
_ROPE = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
         "original_max_position_embeddings": 4096}
_DEFAULTS = {"head_dim": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131_072,
             "num_local_experts": 128, "num_experts_per_tok": 4}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    hf = {**_DEFAULTS, **hf}
    if hf.get("rope_parameters") is None and hf.get("rope_scaling") is None:
        hf["rope_scaling"] = _ROPE
    fields, bias = common_fields(hf), flag(hf, "attention_bias", True)
    return DecoderConfig(
        family="gpt_oss",
        **fields,
        rope=rope_config(hf, theta=150_000.0),
        attention_bias=bias,
        attention_output_bias=bias,
        attention_sinks=True,
        sliding_window=hf.get("sliding_window", 128),
        full_layers=full_layers(hf, lambda layer: layer % 2 == 1),
        moe=MoEConfig(num_experts=size(hf, "num_local_experts"), experts_per_token=size(hf, "num_experts_per_tok"),
                      expert_size=fields["intermediate_size"], normalize=True, bias=True,
                      gate_limit=hf.get("swiglu_limit", 7.0), gate_slope=hf.get("swiglu_alpha", 1.702)),
    )
