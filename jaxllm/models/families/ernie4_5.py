"""Ernie 4.5, dense: Llama's layers with an interleaved rotary embedding.

Source: Baidu 2025, ERNIE 4.5; ``Ernie4_5Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, flag, require_activation
from jaxllm.models.families.names import LLAMA_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("Ernie4_5ForCausalLM",)
NAMES = LLAMA_NAMES


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    bias = flag(hf, "use_bias", False)
    hf = {"head_dim": 128, **hf}
    return DecoderConfig(
        family="ernie4_5",
        **common_fields(hf) | {"tie_word_embeddings": flag(hf, "tie_word_embeddings", True),
                               "norm_eps": hf.get("rms_norm_eps", 1e-5)},
        rope=rope_config(hf, theta=500_000.0, interleaved=True),
        attention_bias=bias,
        attention_output_bias=bias,
        mlp_bias=bias,
    )
