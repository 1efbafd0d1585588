"""Choosing tokens from logits, and log-probabilities."""

from pallas_kernels.sampling.api import (
    DrawParameters,
    LogNormalizer,
    SampledRows,
    TokenLogprobs,
    log_normalizer,
    sample_rows,
    token_logprobs,
)

__all__ = [
    "DrawParameters",
    "LogNormalizer",
    "SampledRows",
    "TokenLogprobs",
    "log_normalizer",
    "sample_rows",
    "token_logprobs",
]
