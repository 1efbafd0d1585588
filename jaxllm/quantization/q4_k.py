"""Q4_K: 256 numbers as 4-bit codes, each 32 of them with a scale and a minimum of 6 bits.

Source: the structure ``block_q4_K`` of ggml's ``ggml-common.h``; the ``gguf`` package decodes it and cannot write it.
"""

from __future__ import annotations

import numpy as np

BLOCK, NBYTES = 256, 144
_GROUP, _LEVELS, _SCALES = 32, 15, 63
_STRETCHES = np.linspace(-1.0, 1.0, 9)  # how far codes reach beyond, or stay within, the numbers' own range


def quantize_q4_k(values: np.ndarray) -> np.ndarray:
    """Float32 [..., columns] to uint8 [..., bytes]; columns are a multiple of 256.

    Of a few ranges for a group's codes, each with the scale and minimum that then fit best (least squares), the one
    with the least squared error is taken; scales and minima are rounded to multiples of the block's, and the codes are
    chosen anew for what they became.
    """
    groups = values.astype(np.float32).reshape(-1, BLOCK // _GROUP, _GROUP)
    scale, minimum = _fit(groups)
    blocks = np.empty((len(groups), NBYTES), np.uint8)
    unit, scale_codes = _six_bits(scale)
    minimum_unit, minimum_codes = _six_bits(minimum)
    blocks[:, 0:2], blocks[:, 2:4] = unit.view(np.uint8), minimum_unit.view(np.uint8)
    blocks[:, 4:16] = _packed(scale_codes, minimum_codes)
    step = unit.astype(np.float32) * scale_codes
    offset = minimum_unit.astype(np.float32) * minimum_codes
    codes = _codes(groups, step[:, :, None], offset[:, :, None]).reshape(-1, 4, 2, _GROUP)
    blocks[:, 16:] = (codes[:, :, 0] | codes[:, :, 1] << 4).reshape(len(groups), -1)
    return blocks.reshape(*values.shape[:-1], values.shape[-1] // BLOCK * NBYTES)


def _fit(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each group's scale and minimum, [blocks, 8] and not negative: a number is about code * scale - minimum."""
    low, high = np.minimum(groups.min(-1), 0), groups.max(-1)
    best_scale, best_minimum = (high - low) / _LEVELS, -low
    best_error = _error(groups, best_scale, best_minimum)
    for stretch in _STRETCHES:
        codes = _codes(groups, ((high - low) / (_LEVELS + stretch))[:, :, None], -low[:, :, None]).astype(np.float32)
        mean_code, mean = codes.mean(-1), groups.mean(-1)
        variance = np.square(codes).mean(-1) - np.square(mean_code)
        covariance = (codes * groups).mean(-1) - mean_code * mean
        scale = np.divide(covariance, variance, out=np.zeros_like(covariance), where=variance > 0)
        minimum = mean_code * scale - mean
        error = np.where((scale >= 0) & (minimum >= 0), _error(groups, scale, minimum), np.inf)
        better = error < best_error
        best_scale, best_minimum, best_error = (np.where(better, new, old) for new, old in (
            (scale, best_scale), (minimum, best_minimum), (error, best_error)))
    return best_scale, best_minimum


def _error(groups: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    scale, minimum = scale[:, :, None], minimum[:, :, None]
    found: np.ndarray = np.square(_codes(groups, scale, minimum) * scale - minimum - groups).sum(-1)
    return found


def _codes(groups: np.ndarray, scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    scaled = np.divide(groups + minimum, scale, out=np.zeros_like(groups), where=scale > 0)
    return np.clip(np.rint(scaled), 0, _LEVELS).astype(np.uint8)


def _six_bits(factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A block's unit, float16 [blocks, 1], and what multiples of it its eight factors are, uint8."""
    unit = (factors.max(-1, keepdims=True) / _SCALES).astype(np.float16)
    wide = unit.astype(np.float32)
    multiples = np.divide(factors, wide, out=np.zeros_like(factors), where=wide > 0)
    return unit, np.clip(np.rint(multiples), 0, _SCALES).astype(np.uint8)


def _packed(scales: np.ndarray, minima: np.ndarray) -> np.ndarray:
    """Eight and eight numbers of 6 bits in 12 bytes: of the last four of each, the low nibbles are in the last four
    bytes, and the high bits above the first four numbers."""
    return np.concatenate([
        scales[:, :4] | scales[:, 4:] >> 4 << 6, minima[:, :4] | minima[:, 4:] >> 4 << 6,
        scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4], axis=1)
