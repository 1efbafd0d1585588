"""GPT-NeoX and Pythia: attention and MLP side by side, each with a norm of its own, and a partial rotary embedding.

Source: Black et al. 2022, GPT-NeoX-20B; Biderman et al. 2023, Pythia; ``GPTNeoXConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, in_llamas_words, layer_norm, plain_mlp
from jaxllm.models.families.names import Names, Stored, grouped_by_head
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("GPTNeoXForCausalLM",)
NAMES: Names = {
    "embedding": ("gpt_neox.embed_in",),
    "norm": ("gpt_neox.final_layer_norm",),
    "head": ("embed_out",),
    "layers.{}.attention_norm": ("gpt_neox.layers.{}.input_layernorm",),
    "layers.{}.attention.qkv": (Stored("gpt_neox.layers.{}.attention.query_key_value", grouped_by_head),),
    "layers.{}.attention.out": ("gpt_neox.layers.{}.attention.dense",),
    "layers.{}.mlp_norm": ("gpt_neox.layers.{}.post_attention_layernorm",),
    "layers.{}.mlp.up": ("gpt_neox.layers.{}.mlp.dense_h_to_4h",),
    "layers.{}.mlp.down": ("gpt_neox.layers.{}.mlp.dense_4h_to_h",),
}
ALIASES = ((r"^embed_out\.", "lm_head."),)
"""What transformers calls the head."""


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    hf = in_llamas_words(hf, {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"})
    bias = flag(hf, "attention_bias", True)
    return DecoderConfig(
        family="gpt_neox",
        **common_fields(hf) | layer_norm(hf, "layer_norm_eps") | plain_mlp(hf, "hidden_act", "gelu"),
        rope=rope_config(hf, partial=0.25),
        parallel_residual=flag(hf, "use_parallel_residual", True),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=True,
    )
