"""``RopeConfig``: the variants of rotary position embeddings, in one place."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

from jaxllm.errors import UnsupportedModelError

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]


def require_positive(name: str, value: object) -> None:
    """Raise ``UnsupportedModelError`` unless ``value`` is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UnsupportedModelError(f"the model's config has {name}={value!r}; a positive number is needed")


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, RoFormer).

    theta: base of the geometric progression of wavelengths.
    kind: "default"; "linear" divides positions by ``factor`` (Chen et al. 2023); "llama3" divides long wavelengths by
        ``factor`` and interpolates in between (Llama 3.1, ``_compute_llama3_parameters`` in transformers); "yarn" does
        so between the wavelengths that turn ``beta_fast`` and ``beta_slow`` times in the original context (Peng et al.
        2023, section 3.2); "longrope" divides by ``frequency_divisors`` (Ding et al. 2024).
    truncate: whether yarn's bounds are whole numbers of dimensions.
    attention_factor: of cosines and sines, as yarn and longrope have it.
    frequency_divisors: explicit divisors per frequency, half as many as rotated dimensions: longrope's, and those of
        GGUF's ``rope_freqs.weight``, which replace "default".
    rotary_dim: how many of a head's dimensions are rotated, the first ones; ``None`` is all of them.
    interleaved: whether even dimensions are rotated against odd ones (GPT-J) or the first half against the second
        (GPT-NeoX, Llama).
    """

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    frequency_divisors: tuple[float, ...] | None = None
    rotary_dim: int | None = None
    interleaved: bool = False

    def __post_init__(self) -> None:
        for name in ("theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position", "beta_fast",
                     "beta_slow", "attention_factor"):
            require_positive(f"rope {name}", getattr(self, name))
        for divisor in self.frequency_divisors or ():
            require_positive("rope frequency divisor", divisor)
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise UnsupportedModelError(f"the model's config has rope low_freq_factor={self.low_freq_factor}; less "
                                        f"than high_freq_factor={self.high_freq_factor} is needed")
        if self.kind == "longrope" and self.frequency_divisors is None:
            raise UnsupportedModelError("the model's config has longrope without its factors")
        size = self.rotary_dim
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 2 or size % 2):
            raise UnsupportedModelError(f"the model's config rotates {size!r} dimensions of a head; a positive even "
                                        "number is needed")

    def rotated(self, head_dim: int) -> int:
        """How many dimensions of a head are rotated."""
        return head_dim if self.rotary_dim is None else self.rotary_dim

    def inverse_frequencies(self, head_dim: int) -> np.ndarray:
        """Angle per position, float32 ``[head_dim / 2]``; 0 for the pairs that are not rotated."""
        size = self.rotated(head_dim)
        if size > head_dim:
            raise UnsupportedModelError(f"the model's config rotates {size} dimensions of heads that have {head_dim}")
        inverse = self._scaled(size)
        return np.pad(inverse, (0, head_dim // 2 - len(inverse)))

    def factors(self, head_dim: int) -> np.ndarray:
        """``attention_factor`` of each pair, float32 ``[head_dim / 2]``; 1 for those that are not rotated."""
        factors = np.ones(head_dim // 2, np.float32)
        factors[: self.rotated(head_dim) // 2] = self.attention_factor
        return factors

    def _scaled(self, size: int) -> np.ndarray:
        exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        inverse = (1.0 / np.float32(self.theta) ** exponents).astype(np.float32)
        if self.frequency_divisors is not None:
            if len(self.frequency_divisors) != len(inverse):
                raise UnsupportedModelError(
                    f"rope has {len(self.frequency_divisors)} frequency divisors, but {size} rotated dimensions need "
                    f"{len(inverse)}"
                )
            return inverse / np.asarray(self.frequency_divisors, np.float32)
        if self.kind == "linear":
            return (inverse / np.float32(self.factor)).astype(np.float32)
        if self.kind == "llama3":
            return self._llama3(inverse)
        if self.kind == "yarn":
            return self._yarn(inverse, size)
        return inverse

    def _llama3(self, inverse: np.ndarray) -> np.ndarray:
        wavelengths = 2 * np.pi / inverse
        longest = self.original_max_position / self.low_freq_factor
        shortest = self.original_max_position / self.high_freq_factor
        smooth = (self.original_max_position / wavelengths - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        between = (1 - smooth) * inverse / self.factor + smooth * inverse
        scaled = np.where(wavelengths > longest, inverse / self.factor, inverse)
        return np.where((wavelengths >= shortest) & (wavelengths <= longest), between, scaled).astype(np.float32)

    def _yarn(self, inverse: np.ndarray, size: int) -> np.ndarray:
        def pair_that_turns(times: float) -> float:
            return size * math.log(self.original_max_position / (times * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        ramp = (np.arange(size // 2) - low) / ((high - low) or 0.001)
        interpolated = np.clip(ramp, 0, 1)
        return (inverse / self.factor * interpolated + inverse * (1 - interpolated)).astype(np.float32)
