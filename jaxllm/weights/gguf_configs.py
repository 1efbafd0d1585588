"""GGUF metadata of each architecture as the rest of a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxllm.errors import CheckpointError, UnsupportedModelError

Metadata = Mapping[str, Any]


def require(metadata: Metadata, key: str) -> Any:
    """A metadata value without which the model cannot be described."""
    if key not in metadata:
        raise CheckpointError(f"the GGUF metadata has no {key!r}")
    return metadata[key]


def _integer(metadata: Metadata, key: str, default: int | None = None) -> int:
    value = require(metadata, key) if default is None else metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedModelError(f"the GGUF metadata {key!r} is {value!r}; supported is one positive integer for "
                                    "all layers")
    return value


def _rope_scaling(metadata: Metadata, prefix: str) -> dict[str, Any] | None:
    kind = metadata.get(f"{prefix}.rope.scaling.type")
    factor = metadata.get(f"{prefix}.rope.scaling.factor", metadata.get(f"{prefix}.rope.scale_linear"))
    if kind == "none" or (kind is None and factor in (None, 0.0, 1.0)):
        return None
    if metadata.get(f"{prefix}.rope.scaling.attn_factor", 1.0) != 1:
        raise UnsupportedModelError(f"the GGUF metadata {f'{prefix}.rope.scaling.attn_factor'!r} is "
                                    f"{metadata[f'{prefix}.rope.scaling.attn_factor']!r}; supported is 1")
    scaling = {"rope_type": kind or "linear", "factor": factor}
    original = metadata.get(f"{prefix}.rope.scaling.original_context_length")
    if original is not None:
        scaling["original_max_position_embeddings"] = original
    return scaling


def _common_config(metadata: Metadata, prefix: str, partial_rope: bool = False) -> dict[str, Any]:
    """What all architectures with rotary embeddings say alike, but for the norms' epsilon.

    partial_rope: whether there may be a part of each head that is not turned.
    """
    heads = _integer(metadata, f"{prefix}.attention.head_count")
    width = _integer(metadata, f"{prefix}.embedding_length")
    head_dim = _integer(metadata, f"{prefix}.attention.key_length", max(1, width // heads))
    sizes = (f"{prefix}.rope.dimension_count", f"{prefix}.attention.value_length")
    for key in sizes[1:] if partial_rope else sizes:
        if metadata.get(key, head_dim) != head_dim:
            raise UnsupportedModelError(f"the GGUF metadata {key!r} is {metadata[key]!r}; for the architecture "
                                        f"{prefix!r} only the head's size, {head_dim}, is supported")
    return {
        "hidden_size": width,
        "intermediate_size": _integer(metadata, f"{prefix}.feed_forward_length"),
        "num_hidden_layers": _integer(metadata, f"{prefix}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": _integer(metadata, f"{prefix}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rope_theta": metadata.get(f"{prefix}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(metadata, prefix),
        "max_position_embeddings": _integer(metadata, f"{prefix}.context_length"),
    }


def _rms_config(metadata: Metadata, prefix: str, partial_rope: bool = False) -> dict[str, Any]:
    """The same, with root-mean-square normalization."""
    epsilon = require(metadata, f"{prefix}.attention.layer_norm_rms_epsilon")
    return _common_config(metadata, prefix, partial_rope) | {"rms_norm_eps": epsilon}


def llama_config(metadata: Metadata) -> dict[str, Any]:
    """Llama's, or Mixtral's where the file has experts."""
    config = _rms_config(metadata, "llama") | {"model_type": "llama", "hidden_act": "silu"}
    if not metadata.get("llama.expert_count"):
        return config
    return config | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": _integer(metadata, "llama.expert_count"),
        "num_experts_per_tok": _integer(metadata, "llama.expert_used_count"),
    }


def qwen2_config(metadata: Metadata) -> dict[str, Any]:
    """Qwen 2's."""
    return _rms_config(metadata, "qwen2") | {"model_type": "qwen2", "hidden_act": "silu"}


def qwen3_config(metadata: Metadata) -> dict[str, Any]:
    """Qwen 3's."""
    return _rms_config(metadata, "qwen3") | {"model_type": "qwen3", "hidden_act": "silu"}


def _qwen_moe_config(metadata: Metadata, prefix: str) -> dict[str, Any]:
    """Which layers have experts, and how scores are normalized, the files do not say: all, and as llama.cpp does it."""
    return _rms_config(metadata, prefix) | {
        "hidden_act": "silu",
        "num_experts": _integer(metadata, f"{prefix}.expert_count"),
        "num_experts_per_tok": _integer(metadata, f"{prefix}.expert_used_count"),
        "moe_intermediate_size": _integer(metadata, f"{prefix}.expert_feed_forward_length"),
        "norm_topk_prob": prefix == "qwen3moe",
    }


def qwen2_moe_config(metadata: Metadata) -> dict[str, Any]:
    """That of Qwen 1.5 and 2 with experts."""
    shared = "qwen2moe.expert_shared_feed_forward_length"
    return _qwen_moe_config(metadata, "qwen2moe") | {
        "model_type": "qwen2_moe", "shared_expert_intermediate_size": _integer(metadata, shared)}


def qwen3_moe_config(metadata: Metadata) -> dict[str, Any]:
    """That of Qwen 3 with experts."""
    return _qwen_moe_config(metadata, "qwen3moe") | {"model_type": "qwen3_moe"}


def gemma_config(metadata: Metadata) -> dict[str, Any]:
    """Gemma 1's."""
    return _rms_config(metadata, "gemma") | {"model_type": "gemma", "hidden_act": "gelu_pytorch_tanh"}


def gemma2_config(metadata: Metadata) -> dict[str, Any]:
    """Gemma 2's."""
    config = _rms_config(metadata, "gemma2")
    return config | {
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": metadata.get("gemma2.attention.sliding_window", 4096),
        "attn_logit_softcapping": metadata.get("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.get("gemma2.final_logit_softcapping", 30.0),
        "query_pre_attn_scalar": _attention_scalar(config, largest=46),
    }


def gemma3_config(metadata: Metadata) -> dict[str, Any]:
    """Gemma 3's."""
    config = _rms_config(metadata, "gemma3")
    return config | {
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": metadata.get("gemma3.rope.freq_base", 1e6),
        "rope_local_base_freq": metadata.get("gemma3.rope.freq_base_swa", 10000.0),
        "sliding_window": require(metadata, "gemma3.attention.sliding_window"),
        "final_logit_softcapping": metadata.get("gemma3.final_logit_softcapping"),
        "query_pre_attn_scalar": _attention_scalar(config, largest=62),
    }


def phi3_config(metadata: Metadata) -> dict[str, Any]:
    """Phi-3's and 4's. The factors of long texts are tensors; how they scale scores follows from the two lengths."""
    config = _rms_config(metadata, "phi3", partial_rope=True)
    return config | {
        "model_type": "phi3",
        "hidden_act": "silu",
        "sliding_window": metadata.get("phi3.attention.sliding_window") or None,
        "partial_rotary_factor": metadata.get("phi3.rope.dimension_count", config["head_dim"]) / config["head_dim"],
        "original_max_position_embeddings": metadata.get(
            "phi3.rope.scaling.original_context_length", config["max_position_embeddings"]),
    }


def gpt2_config(metadata: Metadata) -> dict[str, Any]:
    """GPT-2's."""
    return {
        "model_type": "gpt2",
        "n_embd": _integer(metadata, "gpt2.embedding_length"),
        "n_layer": _integer(metadata, "gpt2.block_count"),
        "n_head": _integer(metadata, "gpt2.attention.head_count"),
        "n_inner": _integer(metadata, "gpt2.feed_forward_length"),
        "n_positions": _integer(metadata, "gpt2.context_length"),
        "layer_norm_epsilon": require(metadata, "gpt2.attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }


def starcoder2_config(metadata: Metadata) -> dict[str, Any]:
    """StarCoder 2's."""
    return _common_config(metadata, "starcoder2") | {
        "model_type": "starcoder2",
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": require(metadata, "starcoder2.attention.layer_norm_epsilon"),
        "sliding_window": metadata.get("starcoder2.attention.sliding_window"),
        "use_bias": True,
    }


def _attention_scalar(config: Mapping[str, Any], largest: int) -> int:
    """Which size attention is scaled by: the head's, in the largest model (27B, known by its layers, as llama.cpp does)
    the width per head. The files do not say."""
    is_largest = config["num_hidden_layers"] == largest
    scalar: int = config["hidden_size"] // config["num_attention_heads"] if is_largest else config["head_dim"]
    return scalar
