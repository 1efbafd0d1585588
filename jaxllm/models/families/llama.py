"""The Llama family: Llama 1 to 3.3, Mistral, SmolLM2, TinyLlama, and whatever shares their layers.

Source: ``LlamaConfig`` and ``MistralConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig, RopeConfig

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM")


def decoder_config(hf: Mapping[str, Any]) -> DecoderConfig:
    """The ``DecoderConfig`` that a Llama-like ``config.json`` means."""
    if hf.get("hidden_act", "silu") != "silu":
        raise UnsupportedModelError(f"hidden_act={hf['hidden_act']!r} is not supported for Llama models: silu is")
    heads = _size(hf, "num_attention_heads")
    hidden = _size(hf, "hidden_size")
    bias = bool(hf.get("attention_bias", False))
    return DecoderConfig(
        family="llama",
        vocab_size=_size(hf, "vocab_size"),
        hidden_size=hidden,
        num_layers=_size(hf, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=hf.get("num_key_value_heads") or heads,
        head_dim=hf.get("head_dim") or hidden // heads,
        intermediate_size=_size(hf, "intermediate_size"),
        max_position_embeddings=hf.get("max_position_embeddings", 2048),
        rms_norm_eps=hf.get("rms_norm_eps", 1e-6),
        rope=rope_config(hf),
        tie_word_embeddings=bool(hf.get("tie_word_embeddings", False)),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bool(hf.get("mlp_bias", False)),
        sliding_window=hf.get("sliding_window"),
    )


def rope_config(hf: Mapping[str, Any]) -> RopeConfig:
    """Rotary settings, from either spelling: ``rope_parameters`` (transformers 5) or ``rope_theta`` and
    ``rope_scaling`` (before)."""
    parameters = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise UnsupportedModelError(f"the model's config describes rope by {parameters!r}; an object is needed")
    theta = parameters.get("rope_theta", hf.get("rope_theta", 10_000.0))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    divisors = hf.get("rope_frequency_divisors")
    if divisors is not None:
        return RopeConfig(theta=theta, frequency_divisors=tuple(float(divisor) for divisor in divisors))
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedModelError(f"rope_type={kind!r} is not supported; default, linear and llama3 are")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=_required(parameters, "factor"))
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=_required(parameters, "factor"),
        low_freq_factor=_required(parameters, "low_freq_factor"),
        high_freq_factor=_required(parameters, "high_freq_factor"),
        original_max_position=_required(parameters, "original_max_position_embeddings"),
    )


def weight_map(config: DecoderConfig) -> dict[str, tuple[str, ...]]:
    """For each parameter, the checkpoint tensors that make it up, stacked along their first axis."""
    names: dict[str, tuple[str, ...]] = {
        "embedding.weight": ("model.embed_tokens.weight",),
        "norm.weight": ("model.norm.weight",),
    }
    if not config.tie_word_embeddings:
        names["head.weight"] = ("lm_head.weight",)
    for layer in range(config.num_layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        names[ours + "attention_norm.weight"] = (theirs + "input_layernorm.weight",)
        names[ours + "mlp_norm.weight"] = (theirs + "post_attention_layernorm.weight",)
        for module, parts, bias in (
            ("attention.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), config.attention_bias),
            ("attention.out", ("self_attn.o_proj",), config.attention_output_bias),
            ("mlp.gate_up", ("mlp.gate_proj", "mlp.up_proj"), config.mlp_bias),
            ("mlp.down", ("mlp.down_proj",), config.mlp_bias),
        ):
            for leaf in ("weight", "bias") if bias else ("weight",):
                names[f"{ours}{module}.{leaf}"] = tuple(f"{theirs}{part}.{leaf}" for part in parts)
    return names


def ignored_tensors(config: DecoderConfig) -> tuple[str, ...]:
    """Patterns of checkpoint tensors that hold nothing the config and the other tensors do not say."""
    ignored = (r".*\.rotary_emb\.inv_freq",)
    return (*ignored, r"lm_head\.weight") if config.tie_word_embeddings else ignored


def _required(hf: Mapping[str, Any], name: str) -> Any:
    if hf.get(name) is None:
        raise UnsupportedModelError(f"the model's config has no {name!r}")
    return hf[name]


def _size(hf: Mapping[str, Any], name: str) -> int:
    value = _required(hf, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedModelError(f"the model's config has {name}={value!r}; a positive integer is needed")
    return value
