"""Phi-1, Phi-1.5 and Phi-2: attention and MLP side by side behind one norm, biases everywhere, a partial rotary
embedding.

Source: Gunasekar et al. 2023, Textbooks Are All You Need; ``PhiConfig`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, layer_norm, plain_mlp, refuse
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("PhiForCausalLM",)
NAMES = {
    **LLAMA_NAMES,
    "norm": ("model.final_layernorm",),
    "layers.{}.attention.out": ("model.layers.{}.self_attn.dense",),
    "layers.{}.mlp.up": ("model.layers.{}.mlp.fc1",),
    "layers.{}.mlp.down": ("model.layers.{}.mlp.fc2",),
}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    refuse(hf, "qk_layernorm", False)
    return DecoderConfig(
        family="phi",
        **common_fields(hf) | layer_norm(hf, "layer_norm_eps") | plain_mlp(hf, "hidden_act", "gelu_new"),
        rope=rope_config(hf, partial=0.5),
        parallel_residual=True,
        shared_norm=True,
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        head_bias=True,
    )
