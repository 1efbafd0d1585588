"""Gemma 1, Gemma 2 and the text model of Gemma 3.

Source: Gemma, Gemma 2 and Gemma 3 technical reports (2024, 2024, 2025); ``GemmaConfig``, ``Gemma2Config`` and
``Gemma3TextConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, full_layers, require_activation, size
from jaxllm.models.families.names import LLAMA_NAMES, QK_NORM_NAMES
from jaxllm.models.families.rope import rope_config

GEMMA1_ARCHITECTURES = ("GemmaForCausalLM",)
GEMMA1_NAMES = LLAMA_NAMES
GEMMA2_ARCHITECTURES = ("Gemma2ForCausalLM",)
GEMMA2_NAMES = {
    **LLAMA_NAMES,
    "layers.{}.attention_post_norm": ("model.layers.{}.post_attention_layernorm",),
    "layers.{}.mlp_norm": ("model.layers.{}.pre_feedforward_layernorm",),
    "layers.{}.mlp_post_norm": ("model.layers.{}.post_feedforward_layernorm",),
}
GEMMA3_ARCHITECTURES = ("Gemma3ForCausalLM",)
GEMMA3_NAMES = {**GEMMA2_NAMES, **QK_NORM_NAMES}

_ACTIVATIONS = ("gelu_pytorch_tanh", "gelu")


def gemma1_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a Gemma 1 ``config.json`` means."""
    # The first checkpoints say "gelu" where the approximation is meant.
    require_activation(hf, "hidden_activation" if hf.get("hidden_activation") else "hidden_act", *_ACTIVATIONS)
    return DecoderConfig(family="gemma", **_shared_fields(hf, context=8192), rope=rope_config(hf))


def gemma2_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a Gemma 2 ``config.json`` means: a window in every other layer, soft caps."""
    require_activation(hf, "hidden_activation", _ACTIVATIONS[0])
    return DecoderConfig(
        family="gemma2",
        **_shared_fields(hf, context=8192),
        rope=rope_config(hf),
        post_norms=True,
        sliding_window=hf.get("sliding_window", 4096),
        full_layers=full_layers(hf, lambda layer: layer % 2 == 1),
        attention_scale=_attention_scale(hf),
        attention_soft_cap=hf.get("attn_logit_softcapping", 50.0),
        logit_soft_cap=hf.get("final_logit_softcapping", 30.0),
    )


def gemma3_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a Gemma 3 ``config.json`` means: a window in five of six layers, with a rotary base of
    their own, and norms of q and k."""
    require_activation(hf, "hidden_activation", _ACTIVATIONS[0])
    if hf.get("use_bidirectional_attention"):
        raise UnsupportedModelError("the model's config has use_bidirectional_attention=true; only causal attention is "
                                    "supported")
    pattern = size({"sliding_window_pattern": 6, **hf}, "sliding_window_pattern")
    ropes = hf.get("rope_parameters")
    if isinstance(ropes, Mapping) and "full_attention" in ropes:
        rope, local = (rope_config({"rope_parameters": ropes.get(kind)}, theta=theta)
                       for kind, theta in (("full_attention", 1e6), ("sliding_attention", 1e4)))
    else:
        rope = rope_config(hf, theta=1e6)
        local = rope_config({"rope_theta": hf.get("rope_local_base_freq", 10_000.0)})
    return DecoderConfig(
        family="gemma3",
        **_shared_fields(hf, context=131_072),
        rope=rope,
        local_rope=local,
        qk_norm="head",
        post_norms=True,
        sliding_window=hf.get("sliding_window", 4096),
        full_layers=full_layers(hf, lambda layer: (layer + 1) % pattern == 0),
        attention_scale=_attention_scale(hf),
        logit_soft_cap=hf.get("final_logit_softcapping"),
    )


def _shared_fields(hf: HFConfig, context: int) -> dict[str, Any]:
    """context: ``max_position_embeddings`` where the config has none, as those of a family's first checkpoints."""
    bias = bool(hf.get("attention_bias", False))
    return common_fields(hf) | {
        "head_dim": hf.get("head_dim", 256),
        "max_position_embeddings": hf.get("max_position_embeddings", context),
        "tie_word_embeddings": bool(hf.get("tie_word_embeddings", True)),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "norm_offset": 1.0,
        "embedding_scale": math.sqrt(hf["hidden_size"]),
        "activation": "gelu_tanh",
    }


def _attention_scale(hf: HFConfig) -> float:
    scalar = hf.get("query_pre_attn_scalar", 256)
    if isinstance(scalar, bool) or not isinstance(scalar, int | float) or scalar <= 0:
        raise UnsupportedModelError(f"the model's config has query_pre_attn_scalar={scalar!r}; a positive number is "
                                    "needed")
    return float(scalar) ** -0.5
