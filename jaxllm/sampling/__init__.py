"""The on-device sampler: logits to tokens and log-probabilities, as pure functions of arrays."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jaxllm.sampling.validation import validate_token_ids
from jaxllm.sampling.variant import Variant, needs_state, variant_of

if TYPE_CHECKING:
    from jaxllm.sampling.logprobs import TokenLogprobs, mask_padded_vocab, to_logprobs, token_logprobs
    from jaxllm.sampling.rows import RowTable, SamplingRows
    from jaxllm.sampling.sampler import MAX_LOGPROBS, NO_TOKEN, SampleOutput, sample
    from jaxllm.sampling.state import SamplingState, init_state, set_slot, slot_row

_LAZY = {  # these import JAX
    "logprobs": ("TokenLogprobs", "mask_padded_vocab", "to_logprobs", "token_logprobs"),
    "rows": ("RowTable", "SamplingRows"),
    "sampler": ("MAX_LOGPROBS", "NO_TOKEN", "SampleOutput", "sample"),
    "state": ("SamplingState", "init_state", "set_slot", "slot_row"),
}

__all__ = [
    "MAX_LOGPROBS",
    "NO_TOKEN",
    "RowTable",
    "SampleOutput",
    "SamplingRows",
    "SamplingState",
    "TokenLogprobs",
    "Variant",
    "init_state",
    "mask_padded_vocab",
    "needs_state",
    "sample",
    "set_slot",
    "slot_row",
    "to_logprobs",
    "token_logprobs",
    "validate_token_ids",
    "variant_of",
]


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
