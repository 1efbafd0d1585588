"""The sampler's semantics in numpy and float64, one row at a time, with a sort: slow and obvious."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxllm.sampling import RowTable, SamplingRows
from jaxllm.sampling_params import SamplingParams


def preference(logits: np.ndarray) -> np.ndarray:
    """Token ids from most to least likely, ties by lowest id."""
    return np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))


def adjust(
    logits: np.ndarray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int], stops: Sequence[int]
) -> np.ndarray:
    """Bias, masks and penalties, token by token."""
    result = logits.astype(np.float64)
    for token in range(len(logits)):
        value = result[token]
        value += (params.logit_bias or {}).get(token, 0.0)
        if token in prompt or token in output:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * output.count(token)
        value -= params.presence_penalty * (token in output)
        banned = token in (params.banned_token_ids or ())
        banned |= params.allowed_token_ids is not None and token not in params.allowed_token_ids
        banned |= len(output) < params.min_tokens and token in stops
        result[token] = -np.inf if banned else value
    return result


def kept_range(logits: np.ndarray, params: SamplingParams, margin: float = 1e-4) -> tuple[int, int]:
    """The fewest and the most tokens, in order of preference, that temperature, min-p, top-k and top-p may keep.

    They differ where float32 may round a probability across a limit: sums and min_p are uncertain by ``margin``.
    """
    order = preference(logits)
    scaled = (logits[order].astype(np.float64) - logits[order[0]]) / params.temperature
    limits = []
    for sign in (-1, 1):
        kept = int(np.isfinite(scaled).sum())
        if params.min_p > 0:
            kept = min(kept, int((scaled >= math.log(params.min_p) - sign * margin).sum()))
        if params.top_k > 0:
            kept = min(kept, params.top_k)
        if params.top_p < 1:
            weights = np.exp(scaled[:kept])
            before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
            kept = int((before < params.top_p * weights.sum() * (1 + sign * margin)).sum())
        limits.append(max(kept, 1))
    return limits[0], limits[1]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def build_rows(
    params: Sequence[SamplingParams],
    *,
    bucket: int | None = None,
    seeds: Sequence[int] | None = None,
    position: int = 7,
    prompt_length: int = 4,
    processed: bool = False,
) -> SamplingRows:
    """One row per set of parameters, in slots 0, 1, ... of 64."""
    table = RowTable(64)
    for slot, one in enumerate(params):
        table.set_slot(slot, one, seeds[slot] if seeds else slot, 0, prompt_length, processed=processed)
    slots = np.arange(len(params))
    return table.rows(slots, np.full(len(params), position), bucket or len(params))
