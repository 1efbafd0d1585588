"""EXAONE 4: norms after attention and MLP instead of before, norms of q and k; in models with a window, every fourth
layer sees everything and has no rotary embedding.

Source: LG AI Research 2025, EXAONE 4.0; ``Exaone4Config`` of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.families.common import HFConfig, common_fields, full_layers, require_activation, size
from jaxllm.models.families.olmo import NAMES as OLMO_NAMES
from jaxllm.models.families.rope import rope_config

ARCHITECTURES = ("Exaone4ForCausalLM",)
NAMES = OLMO_NAMES


def decoder_config(hf: HFConfig) -> DecoderConfig:
    """The ``DecoderConfig`` that a ``config.json`` means."""
    require_activation(hf, "hidden_act", "silu")
    window = hf.get("sliding_window", 4096)
    full = () if window is None else full_layers(hf, _is_full(hf))
    return DecoderConfig(
        family="exaone4",
        **common_fields(hf),
        rope=rope_config(hf),
        sliding_window=window,
        full_layers=full,
        unrotated_layers=full,
        qk_norm="head",
        pre_norms=False,
        post_norms=True,
    )


def _is_full(hf: HFConfig) -> Callable[[int], bool]:
    """What a pattern says, where no list does: a number, or a text such as "LLLG"."""
    pattern = hf.get("sliding_window_pattern", 4)
    if isinstance(pattern, str):
        if not pattern or not set(pattern) <= {"L", "G"}:
            raise UnsupportedModelError(f"the model's config has sliding_window_pattern={pattern!r}; a positive "
                                        "integer or letters L and G are needed")
        return lambda layer: pattern[layer % len(pattern)] == "G"
    every = size({"sliding_window_pattern": pattern}, "sliding_window_pattern")
    return lambda layer: (layer + 1) % every == 0
