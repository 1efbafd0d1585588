"""BLOOM: linear biases of attention (ALiBi), a normalized embedding, layer normalization, biases and no gate.

Source: BigScience 2022, BLOOM; ``BloomConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.alibi import alibi_slopes
from jaxllm.models.families.common import HFConfig, common_fields, flag, in_llamas_words, layer_norm, refuse, size
from jaxllm.models.families.names import Names, Stored, grouped_by_head

ARCHITECTURES = ("BloomForCausalLM",)
NAMES: Names = {
    "embedding": ("transformer.word_embeddings",),
    "embedding_norm": ("transformer.word_embeddings_layernorm",),
    "norm": ("transformer.ln_f",),
    "head": ("lm_head",),
    "layers.{}.attention_norm": ("transformer.h.{}.input_layernorm",),
    "layers.{}.attention.qkv": (Stored("transformer.h.{}.self_attention.query_key_value", grouped_by_head),),
    "layers.{}.attention.out": ("transformer.h.{}.self_attention.dense",),
    "layers.{}.mlp_norm": ("transformer.h.{}.post_attention_layernorm",),
    "layers.{}.mlp.up": ("transformer.h.{}.mlp.dense_h_to_4h",),
    "layers.{}.mlp.down": ("transformer.h.{}.mlp.dense_4h_to_h",),
}
ALIASES = ((r"^transformer\.", ""),)
"""The published checkpoints are of the model without its head."""


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    refuse(hf, "apply_residual_connection_post_layernorm", False)
    hf = in_llamas_words(hf, {"n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
                              "seq_length": "max_position_embeddings"})
    fields = common_fields({**hf, "intermediate_size": 4 * size(hf, "hidden_size")})
    return DecoderConfig(
        family="bloom",
        **fields | layer_norm(hf, "layer_norm_epsilon")
        | {"tie_word_embeddings": flag(hf, "tie_word_embeddings", True)},
        rope=None,
        alibi_slopes=alibi_slopes(fields["num_heads"]),
        embedding_norm=True,
        gated_mlp=False,
        activation="gelu_tanh",
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
    )
