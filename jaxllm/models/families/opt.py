"""OPT: learned positions, layer normalization, biases and ReLU.

OPT 350M normalizes after the residual sum, and has embeddings narrower than its layers.

Source: Zhang et al. 2022, OPT; ``OPTConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

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

ARCHITECTURES = ("OPTForCausalLM",)
_AT = "model.decoder.layers.{}"
NAMES = {
    "embedding": ("model.decoder.embed_tokens",),
    "positions": ("model.decoder.embed_positions",),
    "norm": ("model.decoder.final_layer_norm",),
    "head": ("lm_head",),
    "project_in": ("model.decoder.project_in",),
    "project_out": ("model.decoder.project_out",),
    "layers.{}.attention_norm": (f"{_AT}.self_attn_layer_norm",),
    "layers.{}.attention_post_norm": (f"{_AT}.self_attn_layer_norm",),
    "layers.{}.attention.qkv": (f"{_AT}.self_attn.q_proj", f"{_AT}.self_attn.k_proj", f"{_AT}.self_attn.v_proj"),
    "layers.{}.attention.out": (f"{_AT}.self_attn.out_proj",),
    "layers.{}.mlp_norm": (f"{_AT}.final_layer_norm",),
    "layers.{}.mlp_post_norm": (f"{_AT}.final_layer_norm",),
    "layers.{}.mlp.up": (f"{_AT}.fc1",),
    "layers.{}.mlp.down": (f"{_AT}.fc2",),
}
ALIASES = ((r"^model\.", ""),)
"""Checkpoints of the model without its head."""


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    before = flag(hf, "do_layer_norm_before", True)
    width = size(hf, "hidden_size")
    embedding_size = size(hf, "word_embed_proj_dim") if hf.get("word_embed_proj_dim") is not None else width
    refuse(hf, "layer_norm_elementwise_affine", True)
    bias = flag(hf, "enable_bias", True)
    return DecoderConfig(
        family="opt",
        **common_fields(in_llamas_words(hf, {"ffn_dim": "intermediate_size"})) | layer_norm({}, "")
        | plain_mlp(hf, "activation_function", "relu")
        | {"tie_word_embeddings": flag(hf, "tie_word_embeddings", True)},
        rope=None,
        pre_norms=before,
        post_norms=not before,
        post_norms_of_sum=not before,
        final_norm=before and not flag(hf, "_remove_final_layer_norm", False),
        embedding_size=None if embedding_size == width else embedding_size,
        learned_positions=True,
        position_offset=2,
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bias,
    )
