"""GPT-J: attention and MLP side by side behind one norm, and an interleaved, partial rotary embedding.

Source: Wang and Komatsuzaki 2021, GPT-J-6B; ``GPTJConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig, RopeConfig
from jaxllm.models.families.common import HFConfig, layer_norm, plain_mlp, size
from jaxllm.models.families.gpt2 import gpt2_sizes

ARCHITECTURES = ("GPTJForCausalLM",)
NAMES = {
    "embedding": ("transformer.wte",),
    "norm": ("transformer.ln_f",),
    "head": ("lm_head",),
    "layers.{}.attention_norm": ("transformer.h.{}.ln_1",),
    "layers.{}.attention.qkv": (
        "transformer.h.{}.attn.q_proj", "transformer.h.{}.attn.k_proj", "transformer.h.{}.attn.v_proj"),
    "layers.{}.attention.out": ("transformer.h.{}.attn.out_proj",),
    "layers.{}.mlp.up": ("transformer.h.{}.mlp.fc_in",),
    "layers.{}.mlp.down": ("transformer.h.{}.mlp.fc_out",),
}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    rotary_dim = size({"rotary_dim": 64, **hf}, "rotary_dim")
    return DecoderConfig(
        family="gptj",
        **gpt2_sizes(hf) | layer_norm(hf, "layer_norm_epsilon") | plain_mlp(hf, "activation_function", "gelu_new"),
        rope=RopeConfig(rotary_dim=rotary_dim, interleaved=True),
        parallel_residual=True,
        shared_norm=True,
        mlp_bias=True,
        head_bias=True,
    )
