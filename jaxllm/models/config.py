"""``DecoderConfig``: one description that covers every decoder-only family; a family file only translates to it."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np

from jaxllm.errors import UnsupportedModelError
from pallas_kernels.gated_matmul import ACTIVATIONS, Activation


def _require_positive(name: str, value: object) -> None:
    """Raise ``UnsupportedModelError`` unless ``value`` is a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UnsupportedModelError(f"the model's config has {name}={value!r}; a positive number is needed")


@dataclasses.dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021, RoFormer), rotating halves as Hugging Face's Llama does.

    theta: base of the geometric progression of wavelengths.
    kind: "default"; "linear" divides positions by ``factor`` (Chen et al. 2023); "llama3" divides long wavelengths by
        ``factor`` and interpolates in between (Llama 3.1, ``_compute_llama3_parameters`` in transformers).
    frequency_divisors: explicit divisors per frequency, length head_dim / 2 (GGUF's ``rope_freqs.weight``); they
        replace ``kind``.
    """

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    frequency_divisors: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position"):
            _require_positive(f"rope {name}", getattr(self, name))
        for divisor in self.frequency_divisors or ():
            _require_positive("rope frequency divisor", divisor)
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise UnsupportedModelError(f"the model's config has rope low_freq_factor={self.low_freq_factor}; less "
                                        f"than high_freq_factor={self.high_freq_factor} is needed")

    def inverse_frequencies(self, head_dim: int) -> np.ndarray:
        """Angle per position, float32 ``[head_dim / 2]``."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        inverse = (1.0 / np.float32(self.theta) ** exponents).astype(np.float32)
        if self.frequency_divisors is not None:
            if len(self.frequency_divisors) != len(inverse):
                raise UnsupportedModelError(
                    f"rope has {len(self.frequency_divisors)} frequency divisors, but head_dim={head_dim} needs "
                    f"{len(inverse)}"
                )
            return inverse / np.asarray(self.frequency_divisors, np.float32)
        if self.kind == "linear":
            return (inverse / np.float32(self.factor)).astype(np.float32)
        if self.kind == "llama3":
            return self._llama3(inverse)
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


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The shapes and switches of a decoder-only transformer.

    rope: rotary embedding; local_rope: that of window layers, where it is another. unrotated_layers: those without.
    sliding_window: keys a query sees, itself included; ``None`` is full causal attention. full_layers: the layers that
        see everything nevertheless.
    attention_scale: factor of the scores; ``None`` is ``head_dim ** -0.5``. attention_soft_cap, logit_soft_cap: ``cap *
        tanh(x / cap)`` of the scores, of the logits.
    qk_norm: a norm of queries and of keys before the rotary embedding, over each head or over all of them.
    pre_norms, post_norms: whether attention and MLP are normalized before and after.
    norm_offset: added to the weights of all norms (Gemma stores them less 1).
    embedding_scale: factor of the embedding's rows, which it is rounded for to their dtype. residual_scale: of what
        attention and MLP add to the residual stream, in float32. logit_scale: of the logits, before their cap.
    activation: of the gate of the MLP.

    Raises ``UnsupportedModelError`` naming what makes no sense.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    rope: RopeConfig = RopeConfig()
    local_rope: RopeConfig | None = None
    unrotated_layers: tuple[int, ...] = ()
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    full_layers: tuple[int, ...] = ()
    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    qk_norm: Literal["none", "head", "all"] = "none"
    pre_norms: bool = True
    post_norms: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    activation: Activation = "silu"

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
                     "intermediate_size", "max_position_embeddings"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UnsupportedModelError(f"the model's config has {name}={value!r}; a positive integer is needed")
        window = self.sliding_window
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise UnsupportedModelError(f"the model's config has sliding_window={window!r}; a positive integer or null "
                                        "is needed")
        if self.rms_norm_eps != 0:
            _require_positive("rms_norm_eps", self.rms_norm_eps)
        if self.activation not in ACTIVATIONS:
            raise UnsupportedModelError(f"the model's config has the activation {self.activation!r}; supported: "
                                        + ", ".join(ACTIVATIONS))
        for name in ("attention_scale", "attention_soft_cap", "logit_soft_cap", "embedding_scale", "residual_scale",
                     "logit_scale"):
            if getattr(self, name) is not None:
                _require_positive(name, getattr(self, name))
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads={self.num_heads} is not a multiple of num_key_value_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim={self.head_dim} is odd; rotary embeddings need an even one")

    def window_of(self, layer: int) -> int | None:
        """How many keys a query of this layer sees; ``None`` if all before it."""
        return None if layer in self.full_layers else self.sliding_window

    @property
    def ropes(self) -> tuple[RopeConfig | None, ...]:
        """The rotary embeddings that layers use, ``None`` for layers without."""
        kinds: tuple[RopeConfig | None, ...] = (self.rope,)
        kinds += () if self.local_rope is None else (self.local_rope,)
        return (*kinds, None) if self.unrotated_layers else kinds

    def rope_of(self, layer: int) -> int:
        """Which of ``ropes`` a layer uses."""
        if layer in self.unrotated_layers:
            return len(self.ropes) - 1
        return 0 if self.local_rope is None or self.window_of(layer) is None else 1
