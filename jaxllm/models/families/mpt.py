"""MPT: linear biases of attention (ALiBi), layer normalization without biases, clipped queries, keys and values.

Source: MosaicML 2023, Introducing MPT-7B; ``MptConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.alibi import mpt_slopes
from jaxllm.models.families.common import HFConfig, common_fields, flag, in_llamas_words, layer_norm, refuse, size
from jaxllm.models.rope import require_positive

ARCHITECTURES = ("MptForCausalLM", "MPTForCausalLM")
NAMES = {
    "embedding": ("transformer.wte",),
    "norm": ("transformer.norm_f",),
    "head": ("lm_head",),
    "layers.{}.attention_norm": ("transformer.blocks.{}.norm_1",),
    "layers.{}.attention.qkv": ("transformer.blocks.{}.attn.Wqkv",),
    "layers.{}.attention.out": ("transformer.blocks.{}.attn.out_proj",),
    "layers.{}.mlp_norm": ("transformer.blocks.{}.norm_2",),
    "layers.{}.mlp.up": ("transformer.blocks.{}.ffn.up_proj",),
    "layers.{}.mlp.down": ("transformer.blocks.{}.ffn.down_proj",),
}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    refuse(hf, "no_bias", True)
    refuse(hf, "logit_scale")
    attention = hf.get("attn_config") or {}
    if not isinstance(attention, Mapping):
        raise UnsupportedModelError(f"the model's config has attn_config={attention!r}; an object is needed")
    for name, allowed in _ONLY.items():
        refuse(attention, name, allowed)
    hf = in_llamas_words(hf, {"d_model": "hidden_size", "n_layers": "num_hidden_layers",
                              "n_heads": "num_attention_heads", "max_seq_len": "max_position_embeddings"})
    hf = {**hf, "intermediate_size": size({"expansion_ratio": 4, **hf}, "expansion_ratio") * size(hf, "hidden_size")}
    fields = common_fields(hf)
    largest = attention.get("alibi_bias_max", 8)
    require_positive("alibi_bias_max", largest)
    return DecoderConfig(
        family="mpt",
        **fields | layer_norm(hf, "layer_norm_epsilon", bias=False)
        | {"tie_word_embeddings": flag(hf, "tie_word_embeddings", True)},
        rope=None,
        alibi_slopes=mpt_slopes(fields["num_heads"], largest),
        attention_scale=attention.get("softmax_scale"),
        qkv_clip=attention.get("clip_qkv") or None,
        gated_mlp=False,
        activation="gelu",
    )


_ONLY: Mapping[str, Any] = {"alibi": True, "attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False}
"""Of attention's switches, what all published models have."""
