"""Falcon 7B, 40B and 180B, and Falcon 2: attention and MLP side by side, few kv heads, no gate. Falcon-RW: one after
the other, linear biases of attention (ALiBi) and biases of all products.

Source: Almazrouei et al. 2023, The Falcon Series; ``FalconConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.alibi import alibi_slopes
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
from jaxllm.models.families.names import Names, Stored, grouped_by_head
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("FalconForCausalLM",)


def names(config: DecoderConfig) -> Names:
    """Its weight names: those of the norms depend on how many there are."""
    two = config.parallel_residual and not config.shared_norm
    return {
        "embedding": ("transformer.word_embeddings",),
        "norm": ("transformer.ln_f",),
        "head": ("lm_head",),
        "layers.{}.attention_norm": ("transformer.h.{}.ln_attn" if two else "transformer.h.{}.input_layernorm",),
        "layers.{}.attention.qkv": (Stored("transformer.h.{}.self_attention.query_key_value", grouped_by_head),),
        "layers.{}.attention.out": ("transformer.h.{}.self_attention.dense",),
        "layers.{}.mlp_norm": ("transformer.h.{}.ln_mlp" if two else "transformer.h.{}.post_attention_layernorm",),
        "layers.{}.mlp.up": ("transformer.h.{}.mlp.dense_h_to_4h",),
        "layers.{}.mlp.down": ("transformer.h.{}.mlp.dense_4h_to_h",),
    }


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    hf = in_llamas_words(hf, {
        "n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_head_kv": "num_kv_heads", "ffn_hidden_size": "intermediate_size"})
    hf = {"intermediate_size": 4 * size(hf, "hidden_size"), **hf}
    new, parallel = flag(hf, "new_decoder_architecture", False), flag(hf, "parallel_attn", True)
    if new:
        refuse(hf, "parallel_attn", True)
    kv_heads = size(hf, "num_attention_heads")
    if new and hf.get("num_kv_heads") is not None:
        kv_heads = size(hf, "num_kv_heads")
    elif not new and flag(hf, "multi_query", True):
        kv_heads = 1
    bias = flag(hf, "bias", False)
    norms = hf.get("num_ln_in_parallel_attn") or (2 if new else 1)
    fields = common_fields({**hf, "num_key_value_heads": kv_heads, "head_dim": None})
    slopes = None
    if flag(hf, "alibi", False):
        # In bfloat16, as they were in training; they are scaled as the scores are.
        scale = fields["head_dim"] ** -0.5
        slopes = tuple(float(np.asarray(slope, ml_dtypes.bfloat16)) * scale
                       for slope in alibi_slopes(fields["num_heads"]))
    return DecoderConfig(
        family="falcon",
        **fields | layer_norm(hf, "layer_norm_epsilon") | plain_mlp(hf, "activation", "gelu")
        | {"tie_word_embeddings": flag(hf, "tie_word_embeddings", True)},
        rope=rope_config(hf) if slopes is None else None,
        alibi_slopes=slopes,
        parallel_residual=parallel,
        shared_norm=parallel and norms == 1,
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bias,
    )
