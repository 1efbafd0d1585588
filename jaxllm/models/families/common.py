"""What the families' translations share: reading sizes and rotary settings, and tables of weight names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig, RopeConfig

HFConfig = Mapping[str, Any]

Names = Mapping[str, tuple[str, ...]]
"""For each module of the decoder, the modules of a checkpoint that make it up, stacked along their first axis; ``{}``
stands for the layer's number in both."""

LLAMA_NAMES: Names = {
    "embedding": ("model.embed_tokens",),
    "norm": ("model.norm",),
    "head": ("lm_head",),
    "layers.{}.attention_norm": ("model.layers.{}.input_layernorm",),
    "layers.{}.attention.qkv": (
        "model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.k_proj", "model.layers.{}.self_attn.v_proj"),
    "layers.{}.attention.out": ("model.layers.{}.self_attn.o_proj",),
    "layers.{}.mlp_norm": ("model.layers.{}.post_attention_layernorm",),
    "layers.{}.mlp.gate_up": ("model.layers.{}.mlp.gate_proj", "model.layers.{}.mlp.up_proj"),
    "layers.{}.mlp.down": ("model.layers.{}.mlp.down_proj",),
}
"""Most families name their weights as Llama does."""

QK_NORM_NAMES: Names = {
    "layers.{}.attention.q_norm": ("model.layers.{}.self_attn.q_norm",),
    "layers.{}.attention.k_norm": ("model.layers.{}.self_attn.k_norm",),
}


def weight_map(names: Names, config: DecoderConfig) -> dict[str, tuple[str, ...]]:
    """For each parameter, the checkpoint tensors that make it up, stacked along their first axis."""
    biased = {"layers.{}.attention.qkv": config.attention_bias, "layers.{}.attention.out": config.attention_output_bias,
              "layers.{}.mlp.gate_up": config.mlp_bias, "layers.{}.mlp.down": config.mlp_bias}
    found: dict[str, tuple[str, ...]] = {}
    for ours, theirs in names.items():
        if ours == "head" and config.tie_word_embeddings:
            continue
        for layer in range(config.num_layers) if "{}" in ours else (0,):
            for leaf in ("weight", "bias") if biased.get(ours) else ("weight",):
                found[f"{ours.format(layer)}.{leaf}"] = tuple(f"{name.format(layer)}.{leaf}" for name in theirs)
    return found


def ignored_tensors(config: DecoderConfig) -> tuple[str, ...]:
    """Patterns of checkpoint tensors that hold nothing the config and the other tensors do not say."""
    ignored = (r".*\.rotary_emb\.inv_freq",)
    return (*ignored, r"lm_head\.weight") if config.tie_word_embeddings else ignored


def common_fields(hf: HFConfig) -> dict[str, Any]:
    """The fields of a ``DecoderConfig`` that nearly all families spell alike."""
    heads, hidden = size(hf, "num_attention_heads"), size(hf, "hidden_size")
    return {
        "vocab_size": size(hf, "vocab_size"),
        "hidden_size": hidden,
        "num_layers": size(hf, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": heads if hf.get("num_key_value_heads") is None else size(hf, "num_key_value_heads"),
        "head_dim": hidden // heads if hf.get("head_dim") is None else size(hf, "head_dim"),
        "intermediate_size": size(hf, "intermediate_size"),
        "max_position_embeddings": hf.get("max_position_embeddings", 2048),
        "rms_norm_eps": hf.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": bool(hf.get("tie_word_embeddings", False)),
    }


def rope_config(hf: HFConfig, *, theta: float = 10_000.0) -> RopeConfig:
    """Rotary settings, from either spelling: ``rope_parameters`` (transformers 5) or ``rope_theta`` and
    ``rope_scaling`` (before). theta: where the config has none."""
    parameters = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise UnsupportedModelError(f"the model's config describes rope by {parameters!r}; an object is needed")
    theta = parameters.get("rope_theta", hf.get("rope_theta", theta))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    divisors = hf.get("rope_frequency_divisors")
    if divisors is not None:
        return RopeConfig(theta=theta, frequency_divisors=tuple(float(divisor) for divisor in divisors))
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedModelError(f"rope_type={kind!r} is not supported; default, linear and llama3 are")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=required(parameters, "factor"))
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=required(parameters, "factor"),
        low_freq_factor=required(parameters, "low_freq_factor"),
        high_freq_factor=required(parameters, "high_freq_factor"),
        original_max_position=required(parameters, "original_max_position_embeddings"),
    )


_KINDS = {"full_attention": True, "sliding_attention": False}


def full_layers(hf: HFConfig, is_full: Any) -> tuple[int, ...]:
    """The layers that do not use the window: those that ``layer_types`` says, or, in older configs, ``is_full``, a
    function of the layer's number."""
    layers = size(hf, "num_hidden_layers")
    kinds = hf.get("layer_types")
    if kinds is None:
        return tuple(layer for layer in range(layers) if is_full(layer))
    if not isinstance(kinds, list) or len(kinds) != layers or not all(isinstance(kind, str) and kind in _KINDS
                                                                       for kind in kinds):
        raise UnsupportedModelError(f"the model's config has layer_types={kinds!r}; a list of {layers} is needed, each "
                                    + " or ".join(_KINDS))
    return tuple(layer for layer, kind in enumerate(kinds) if _KINDS[kind])


def require_activation(hf: HFConfig, name: str, *allowed: str) -> None:
    """``UnsupportedModelError`` unless the activation is among these; the first is what an absent one means."""
    value = hf.get(name) or allowed[0]
    if value not in allowed:
        raise UnsupportedModelError(f"{name}={value!r} is not supported for this family: {' and '.join(allowed)} "
                                    f"{'are' if allowed[1:] else 'is'}")


def required(hf: HFConfig, name: str) -> Any:
    """An entry without which the model cannot be described."""
    if hf.get(name) is None:
        raise UnsupportedModelError(f"the model's config has no {name!r}")
    return hf[name]


def size(hf: HFConfig, name: str) -> int:
    """An entry that is a positive integer."""
    value = required(hf, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UnsupportedModelError(f"the model's config has {name}={value!r}; a positive integer is needed")
    return value
