"""Rotary scaling: from the divisors of a GGUF file to what a ``config.json`` can say, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import RopeConfig

_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192  # what all models with this scaling have


def with_rope_scaling(config: Mapping[str, Any], where: object) -> dict[str, Any]:
    """A GGUF file's config with Llama 3's ``rope_scaling`` in place of the divisors that it led to.

    Raises ``UnsupportedModelError`` for other divisors: nothing in a ``config.json`` means them.
    """
    changed = {key: value for key, value in config.items() if key != "rope_frequency_divisors"}
    divisors = config.get("rope_frequency_divisors")
    if divisors is None:
        return changed
    # The longest wavelengths are divided by all of the factor.
    factor = float(max(divisors))
    rope = RopeConfig(theta=config["rope_theta"], kind="llama3", factor=factor, low_freq_factor=_LOW,
                      high_freq_factor=_HIGH, original_max_position=_ORIGINAL)
    found = frequency_divisors(rope, 2 * len(divisors))
    if not np.allclose(found, divisors, rtol=1e-5):
        raise UnsupportedModelError(f"{where}: its rope_freqs.weight is not Llama 3's scaling, and a config.json "
                                    "cannot say other divisors of frequencies; write a .gguf file instead")
    return changed | {"rope_scaling": {
        "rope_type": "llama3", "factor": factor, "low_freq_factor": _LOW, "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL}}


def frequency_divisors(rope: RopeConfig, head_dim: int) -> np.ndarray:
    """By what the scaling divides each frequency, float32 [head_dim / 2]."""
    plain = RopeConfig(theta=rope.theta).inverse_frequencies(head_dim)
    return (plain / rope.inverse_frequencies(head_dim)).astype(np.float32)
