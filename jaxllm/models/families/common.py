"""What the families' translations share: reading sizes, activations and rotary settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxllm.errors import UnsupportedModelError

HFConfig = Mapping[str, Any]


def common_fields(hf: HFConfig) -> dict[str, Any]:
    """The fields of a ``DecoderConfig`` that nearly all families spell alike."""
    heads = size(hf, "num_attention_heads")
    return {
        "vocab_size": size(hf, "vocab_size"),
        "hidden_size": size(hf, "hidden_size"),
        "num_layers": size(hf, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": heads if hf.get("num_key_value_heads") is None else size(hf, "num_key_value_heads"),
        "head_dim": head_dim(hf),
        "intermediate_size": size(hf, "intermediate_size"),
        "max_position_embeddings": hf.get("max_position_embeddings", 2048),
        "norm_eps": hf.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": bool(hf.get("tie_word_embeddings", False)),
    }


def head_dim(hf: HFConfig) -> int:
    """The size of a head: what the config says, or the model's width over its heads."""
    if hf.get("head_dim") is not None:
        return size(hf, "head_dim")
    return size(hf, "hidden_size") // size(hf, "num_attention_heads")


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


_PLAIN = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
          "relu": "relu", "relu2": "relu2", "silu": "silu", "swish": "silu"}
"""What Hugging Face's names of activations mean."""


def plain_mlp(hf: HFConfig, name: str, default: str) -> dict[str, Any]:
    """The fields of an MLP without a gate; ``UnsupportedModelError`` for other activations."""
    value = hf.get(name) or default
    if value not in _PLAIN:
        raise UnsupportedModelError(f"{name}={value!r} is not supported: {', '.join(_PLAIN)} are")
    return {"gated_mlp": False, "activation": _PLAIN[value]}


def layer_norm(hf: HFConfig, epsilon: str, *, bias: bool = True) -> dict[str, Any]:
    """The fields of layer normalization. epsilon: the entry's name."""
    return {"norm": "layer", "norm_eps": hf.get(epsilon, 1e-5), "norm_bias": bias}


def in_llamas_words(hf: HFConfig, words: Mapping[str, str]) -> dict[str, Any]:
    """A config with the entries that ``words`` translates under Llama's names as well, as far as it has them."""
    return {**hf, **{theirs: hf[ours] for ours, theirs in words.items() if hf.get(ours) is not None}}


def flag(hf: HFConfig, name: str, default: bool) -> bool:
    """A switch; ``UnsupportedModelError`` unless it is true or false."""
    value = hf.get(name)
    if value is not None and not isinstance(value, bool):
        raise UnsupportedModelError(f"the model's config has {name}={value!r}; true or false is needed")
    return default if value is None else value


def refuse(hf: HFConfig, name: str, *allowed: Any) -> None:
    """``UnsupportedModelError`` unless an entry is absent or one of the values ``allowed``."""
    if name in hf and not any(hf[name] == value for value in (None, *allowed)):
        raise UnsupportedModelError(f"the model's config has {name}={hf[name]!r}, which is not supported for this "
                                    f"family: {' and '.join(map(repr, allowed))} {'are' if allowed[1:] else 'is'}")


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
