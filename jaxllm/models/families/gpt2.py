"""GPT-2: learned positions, layer normalization, biases and an MLP without a gate.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners; ``GPT2Config`` of Hugging Face
transformers.
"""

from __future__ import annotations

from typing import Any

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import (
    HFConfig,
    common_fields,
    flag,
    in_llamas_words,
    layer_norm,
    plain_mlp,
    refuse,
    size,
)
from jaxllm.models.families.names import Names, Stored, transposed

ARCHITECTURES = ("GPT2LMHeadModel",)
NAMES: Names = {
    "embedding": ("transformer.wte",),
    "positions": ("transformer.wpe",),
    "norm": ("transformer.ln_f",),
    "head": ("lm_head",),
    "layers.{}.attention_norm": ("transformer.h.{}.ln_1",),
    "layers.{}.attention.qkv": (Stored("transformer.h.{}.attn.c_attn", transposed),),
    "layers.{}.attention.out": (Stored("transformer.h.{}.attn.c_proj", transposed),),
    "layers.{}.mlp_norm": ("transformer.h.{}.ln_2",),
    "layers.{}.mlp.up": (Stored("transformer.h.{}.mlp.c_fc", transposed),),
    "layers.{}.mlp.down": (Stored("transformer.h.{}.mlp.c_proj", transposed),),
}
ALIASES = ((r"^transformer\.", ""),)
"""The original checkpoints are of the model without its head."""


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    refuse(hf, "scale_attn_by_inverse_layer_idx", False)
    refuse(hf, "add_cross_attention", False)
    return DecoderConfig(
        family="gpt2",
        **gpt2_sizes(hf) | layer_norm(hf, "layer_norm_epsilon") | plain_mlp(hf, "activation_function", "gelu_new")
        | {"tie_word_embeddings": flag(hf, "tie_word_embeddings", True)},
        rope=None,
        learned_positions=True,
        attention_scale=None if flag(hf, "scale_attn_weights", True) else 1.0,
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
    )


def gpt2_sizes(hf: HFConfig) -> dict[str, Any]:
    """``common_fields`` of the configs that name sizes as GPT-2's does."""
    hf = in_llamas_words(hf, {
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_inner": "intermediate_size", "n_positions": "max_position_embeddings"})
    return common_fields({"intermediate_size": 4 * size(hf, "hidden_size"), **hf})
