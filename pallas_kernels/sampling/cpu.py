"""Sampling by the native library: rows over XLA's threads, each in a core's own cache."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.cpu.library import require
from pallas_kernels.sampling.api import DrawParameters, LogNormalizer, SampledRows, TokenLogprobs

LARGEST_VOCABULARY = 2**23


def unsupported(logits: Array, **others: Any) -> str | None:
    """Why these operands are left to another implementation, or ``None``."""
    if logits.shape[1] > LARGEST_VOCABULARY:
        return f"a vocabulary has at most {LARGEST_VOCABULARY} tokens, not {logits.shape[1]}"
    return None


def sample_rows_cpu(
    logits: Float[Array, "B V"],
    draws: DrawParameters | None,
    filters: bool,
    raw: Float[Array, "B V"] | None,
    wants_logprobs: Bool[Array, " B"] | None,
    wants_limit: Bool[Array, " B"] | None,
    k: int,
) -> SampledRows:
    """One call. Each row costs what it asks for: noise is computed only where it can decide."""
    rows = logits.shape[0]
    nobody = jnp.zeros(rows, bool)
    call = jax.ffi.ffi_call(require("pallas_kernels_sample_rows_v1"), jax.tree.leaves(SampledRows.shapes(rows, k)),
                            vmap_method="sequential")
    token_ids, limit_value, limit_token, *reported = call(
        logits,
        logits if raw is None else raw,
        *(DrawParameters.all_greedy(rows) if draws is None else draws),
        nobody if wants_logprobs is None else wants_logprobs,
        nobody if wants_limit is None else wants_limit,
    )
    return SampledRows(token_ids, limit_value, limit_token, TokenLogprobs(*reported))


def token_logprobs_cpu(logits: Float[Array, "C V"], targets: Int[Array, " C"], k: int) -> TokenLogprobs:
    """One call."""
    call = jax.ffi.ffi_call(
        require("pallas_kernels_token_logprobs_v1"), TokenLogprobs.shapes(logits.shape[0], k),
        vmap_method="sequential")
    return TokenLogprobs(*call(logits, targets))


def log_normalizer_cpu(logits: Float[Array, "B V"]) -> LogNormalizer:
    """One call."""
    call = jax.ffi.ffi_call(
        require("pallas_kernels_log_normalizer_v1"), LogNormalizer.shapes(logits.shape[0]), vmap_method="sequential")
    return LogNormalizer(*call(logits))
