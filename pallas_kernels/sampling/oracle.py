"""Sampling in float64, a row at a time with a sort, on the host. For tests only."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.sampling.api import DrawParameters, LogNormalizer, SampledRows, TokenLogprobs

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_WORD = 0xFFFFFFFF


def sample_rows_oracle(
    logits: Float[Array, "B V"],
    draws: DrawParameters | None,
    filters: bool,
    raw: Float[Array, "B V"] | None,
    wants_logprobs: Bool[Array, " B"] | None,
    wants_limit: Bool[Array, " B"] | None,
    k: int,
) -> SampledRows:
    """Under ``jit`` through a callback."""
    rows = logits.shape[0]
    nobody = np.zeros(rows, bool)
    result: SampledRows = jax.pure_callback(
        lambda *operands: _sample(*operands, k=k), SampledRows.shapes(rows, k),
        logits, DrawParameters.all_greedy(rows) if draws is None else draws, logits if raw is None else raw,
        nobody if wants_logprobs is None else wants_logprobs, nobody if wants_limit is None else wants_limit)
    return result


def token_logprobs_oracle(logits: Float[Array, "C V"], targets: Int[Array, " C"], k: int) -> TokenLogprobs:
    """Under ``jit`` through a callback."""
    result: TokenLogprobs = jax.pure_callback(
        lambda *operands: _reported(*operands, k=k), TokenLogprobs.shapes(logits.shape[0], k), logits, targets)
    return result


def log_normalizer_oracle(logits: Float[Array, "B V"]) -> LogNormalizer:
    """Under ``jit`` through a callback."""
    result: LogNormalizer = jax.pure_callback(_normalizer, LogNormalizer.shapes(logits.shape[0]), logits)
    return result


def preference(logits: np.ndarray) -> np.ndarray:
    """The ids of one row in the order of preference."""
    return np.lexsort((np.arange(len(logits)), -logits.astype(np.float64)))


def num_kept(scaled: np.ndarray, top_p: float, log_min_p: float, top_k: int) -> int:
    """How many tokens the filters keep, of logits scaled by the temperature in the order of preference."""
    kept = int(np.isfinite(scaled).sum())
    kept = min(kept, int((scaled >= log_min_p).sum()))
    if top_k > 0:
        kept = min(kept, top_k)
    if top_p < 1:
        weights = np.exp(scaled[:kept])
        before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
        kept = int((before < top_p * weights.sum()).sum())
    return kept


def gumbel_noise(seed_high: int, seed_low: int, sample_index: int, position: int, vocab_size: int) -> np.ndarray:
    """Each token's noise: what ``pallas_kernels.sampling.noise`` says, in float64."""
    key = _threefry(seed_high, seed_low, np.array([sample_index]), np.array([position]))
    bits, _ = _threefry(int(key[0][0]), int(key[1][0]), np.arange(vocab_size), np.zeros(vocab_size, np.int64))
    return -np.log(-np.log1p(-(bits + 0.5) / 2.0**32))


def _threefry(key0: int, key1: int, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keys = (key0, key1, key0 ^ key1 ^ 0x1BD11BDA)
    x, y = (x + key0) & _WORD, (y + key1) & _WORD
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = (x + y) & _WORD
            y = ((y << rotation | y >> (32 - rotation)) & _WORD) ^ x
        x = (x + keys[(group + 1) % 3]) & _WORD
        y = (y + keys[(group + 2) % 3] + group + 1) & _WORD
    return x, y


def _sample(logits: np.ndarray, draws: DrawParameters, raw: np.ndarray, wants_logprobs: np.ndarray,
            wants_limit: np.ndarray, *, k: int) -> SampledRows:
    logits, raw = np.asarray(logits), np.asarray(raw)
    rows, vocab_size = logits.shape
    tokens = np.full(rows, -1, np.int32)
    limits = np.full(rows, -np.inf, np.float32), np.full(rows, vocab_size, np.int32)
    for row in range(rows):
        draw: Any = DrawParameters(*(np.asarray(column)[row].item() for column in draws))
        if not (np.all(logits[row] < np.inf) and np.all(raw[row] < np.inf) and np.any(logits[row] > -np.inf)):
            continue
        order = preference(logits[row])
        scaled = (logits[row].astype(np.float64) - logits[row, order[0]]) / draw.temperature
        kept = order[:num_kept(scaled[order], draw.top_p, draw.log_min_p, draw.top_k)]
        filtered = draw.top_k > 0 or draw.top_p < 1 or draw.log_min_p > -math.inf
        if wants_limit[row] and filtered:
            limits[0][row], limits[1][row] = logits[row, kept[-1]], kept[-1]
        tokens[row] = order[0]
        if not draw.greedy:
            ids = np.sort(kept)
            noise = gumbel_noise(draw.seed_high, draw.seed_low, draw.sample_index, draw.position, vocab_size)
            tokens[row] = ids[np.argmax(scaled[ids] + noise[ids])]
    wanted = np.asarray(wants_logprobs)
    reported = jax.tree.map(lambda part: np.where(wanted.reshape(-1, *[1] * (part.ndim - 1)), part, part.dtype.type(0)),
                            _reported(raw, tokens, k=k))
    result: Any = (tokens, *limits, reported)
    return SampledRows(*result)


def _reported(logits: np.ndarray, targets: np.ndarray, *, k: int) -> TokenLogprobs:
    logits, targets = np.asarray(logits), np.asarray(targets)
    best, log_total = map(np.asarray, _normalizer(logits))
    with np.errstate(invalid="ignore"):
        logprobs = logits.astype(np.float64) - best[:, None] - log_total[:, None]
    rows = np.arange(len(logits))
    chosen = np.maximum(targets, 0)
    top = np.stack([preference(row)[:k] for row in logits])
    result: Any = (
        np.where(targets < 0, np.nan, logprobs[rows, chosen]).astype(np.float32),
        (1 + (logits > logits[rows, chosen][:, None]).sum(axis=1)).astype(np.int32),
        top.astype(np.int32),
        np.take_along_axis(logprobs, top, axis=1).astype(np.float32),
    )
    return TokenLogprobs(*result)


def _normalizer(logits: np.ndarray) -> LogNormalizer:
    logits = np.asarray(logits)
    best = logits.max(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        total = np.exp(logits.astype(np.float64) - best[:, None]).sum(axis=1)
        result: Any = (best, np.log(total).astype(np.float32))
    return LogNormalizer(*result)
