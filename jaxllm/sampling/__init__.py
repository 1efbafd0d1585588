"""The on-device sampler: logits to tokens and log-probabilities, as pure functions of arrays."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jaxllm.sampling.report import ShortLogprobs, VocabularyLogprobs, from_vocabulary, to_logprobs
from jaxllm.sampling.validation import validate_token_ids
from jaxllm.sampling.variant import (
    MAX_LOGPROBS,
    Variant,
    needs_penalties,
    needs_prompt_vocab_logprobs,
    needs_state,
    needs_vocab_logprobs,
    variant_of,
)

if TYPE_CHECKING:
    from jaxllm.sampling.logprobs import TokenLogprobs, mask_padded_vocab, token_logprobs
    from jaxllm.sampling.masks import ALL_ALLOWED, mask_words
    from jaxllm.sampling.over_devices import sample_over_devices, token_logprobs_over_devices
    from jaxllm.sampling.processors import LogitsProcessor, LogitsState, check_processors
    from jaxllm.sampling.rows import RowTable, SamplingRows
    from jaxllm.sampling.sampler import NO_TOKEN, SampleOutput, VocabLogprobs, sample, vocab_logprobs
    from jaxllm.sampling.state import SamplingState, SlotRow, init_state, set_slot, slot_row

_LAZY = {  # these import JAX
    "logprobs": ("TokenLogprobs", "mask_padded_vocab", "token_logprobs"),
    "masks": ("ALL_ALLOWED", "mask_words"),
    "over_devices": ("sample_over_devices", "token_logprobs_over_devices"),
    "processors": ("LogitsProcessor", "LogitsState", "check_processors"),
    "rows": ("RowTable", "SamplingRows"),
    "sampler": ("NO_TOKEN", "SampleOutput", "VocabLogprobs", "sample", "vocab_logprobs"),
    "state": ("SamplingState", "SlotRow", "init_state", "set_slot", "slot_row"),
}

__all__ = [
    "ALL_ALLOWED",
    "MAX_LOGPROBS",
    "NO_TOKEN",
    "LogitsProcessor",
    "LogitsState",
    "RowTable",
    "SampleOutput",
    "SamplingRows",
    "SamplingState",
    "ShortLogprobs",
    "SlotRow",
    "TokenLogprobs",
    "Variant",
    "VocabLogprobs",
    "VocabularyLogprobs",
    "check_processors",
    "from_vocabulary",
    "init_state",
    "mask_padded_vocab",
    "mask_words",
    "needs_penalties",
    "needs_prompt_vocab_logprobs",
    "needs_state",
    "needs_vocab_logprobs",
    "sample",
    "sample_over_devices",
    "set_slot",
    "slot_row",
    "to_logprobs",
    "token_logprobs",
    "token_logprobs_over_devices",
    "validate_token_ids",
    "variant_of",
    "vocab_logprobs",
]


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
