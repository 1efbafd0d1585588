"""Qwen 2 and 2.5 (biases of q, k and v) and dense Qwen 3 (norms of q and k).

Source: Qwen2 Technical Report (2024), Qwen3 Technical Report (2025); ``Qwen2Config`` and ``Qwen3Config`` of Hugging
Face transformers.
"""

from __future__ import annotations

from typing import Any

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, full_layers, require_activation
from jaxllm.models.families.names import LLAMA_NAMES, QK_NORM_NAMES
from jaxllm.models.families.rope import rope_config

QWEN2_ARCHITECTURES = ("Qwen2ForCausalLM",)
QWEN2_NAMES = LLAMA_NAMES
QWEN3_ARCHITECTURES = ("Qwen3ForCausalLM",)
QWEN3_NAMES = {**LLAMA_NAMES, **QK_NORM_NAMES}


def qwen2_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a Qwen 2 or 2.5 ``config.json`` means."""
    return DecoderConfig(family="qwen2", **_shared_fields(hf), attention_bias=True)


def qwen3_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a dense Qwen 3 ``config.json`` means."""
    bias = bool(hf.get("attention_bias", False))
    fields = _shared_fields(hf) | {"head_dim": hf.get("head_dim") or 128}
    return DecoderConfig(family="qwen3", **fields, attention_bias=bias, attention_output_bias=bias, qk_norm="head")


def _shared_fields(hf: HFConfig) -> dict[str, Any]:
    require_activation(hf, "hidden_act", "silu")
    fields = common_fields(hf) | {"rope": rope_config(hf)}
    if not hf.get("use_sliding_window", False) or hf.get("sliding_window") is None:
        return fields
    full = full_layers(hf, lambda layer: layer < hf.get("max_window_layers", 28))
    return fields | {"sliding_window": hf["sliding_window"], "full_layers": full}
