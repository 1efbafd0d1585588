"""StarCoder 2: layer normalization, biases, an MLP without a gate and a sliding window.

Source: Lozhkov et al. 2024, StarCoder 2 and The Stack v2; ``Starcoder2Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, layer_norm, plain_mlp
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("Starcoder2ForCausalLM",)
NAMES = {
    **LLAMA_NAMES,
    "layers.{}.mlp.up": ("model.layers.{}.mlp.c_fc",),
    "layers.{}.mlp.down": ("model.layers.{}.mlp.c_proj",),
}


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    bias = flag(hf, "use_bias", True)
    return DecoderConfig(
        family="starcoder2",
        **common_fields(hf) | layer_norm(hf, "norm_epsilon") | plain_mlp(hf, "hidden_act", "gelu_pytorch_tanh")
        | {"tie_word_embeddings": flag(hf, "tie_word_embeddings", True)},
        rope=rope_config(hf),
        sliding_window=hf.get("sliding_window"),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bias,
    )
