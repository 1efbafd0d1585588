"""``DecoderConfig``: one description that covers every decoder-only family; a family file only translates to it."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.rope import RopeConfig, require_positive
from pallas_kernels.gated_matmul import ACTIVATIONS, Activation

__all__ = ["DecoderConfig", "PlainActivation", "RopeConfig"]

PlainActivation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""Of an MLP without a gate: ``gelu`` is exact, ``gelu_tanh`` approximate (Hendrycks and Gimpel 2016), ``relu2`` the
square of ``relu`` (So et al. 2021, Primer)."""


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The shapes and switches of a decoder-only transformer.

    norm: root-mean-square or layer normalization, with an epsilon of ``norm_eps``; norm_bias: whether those over the
        model's width have biases.
    rope: rotary embedding, if there is any; local_rope: that of window layers, where it is another. unrotated_layers:
        those without.
    alibi_slopes: of each head, in place of a rotary embedding: that times a key's distance is taken from its score.
    learned_positions: whether embeddings of positions are added to those of tokens, the first at row
        ``position_offset`` of their table. embedding_norm: whether the sum is normalized.
    sliding_window: keys a query sees, itself included; ``None`` is full causal attention. full_layers: the layers that
        see everything nevertheless.
    attention_scale: factor of the scores; ``None`` is ``head_dim ** -0.5``. attention_soft_cap, logit_soft_cap: ``cap *
        tanh(x / cap)`` of the scores, of the logits.
    qkv_clip: the largest magnitude of queries, keys and values.
    qk_norm: a norm of queries and of keys, over each "head" with the same weights, over each of the "heads" with
        weights of its own, or over "all" of them at once; before the rotary embedding, or with
        ``qk_norm_after_rope`` after it.
    pre_norms, post_norms: whether attention and MLP are normalized before and after; with ``post_norms_of_sum`` what is
        normalized after is the residual stream that they were added to (Vaswani et al. 2017). final_norm: whether the
        stream is normalized at its end.
    embedding_size: width of the embedding and the head, if it is not ``hidden_size``: one matrix then leads from it to
        the layers, and one back.
    parallel_residual: whether the MLP reads what attention reads, the residual stream before either is added.
        shared_norm: whether it also reads it through the same norm.
    norm_offset: added to the weights of all norms (Gemma stores them less 1).
    embedding_scale: factor of the embedding's rows, which it is rounded for to their dtype. residual_scale: of what
        attention and MLP add to the residual stream, in float32. logit_scale: of the logits, before their cap.
    gated_mlp: whether the MLP has a gate. activation: of the gate, or else of the MLP.
    head_bias: whether the head has one.

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
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    norm_bias: bool = False
    rope: RopeConfig | None = dataclasses.field(default_factory=RopeConfig)
    local_rope: RopeConfig | None = None
    unrotated_layers: tuple[int, ...] = ()
    alibi_slopes: tuple[float, ...] | None = None
    learned_positions: bool = False
    position_offset: int = 0
    embedding_norm: bool = False
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    sliding_window: int | None = None
    full_layers: tuple[int, ...] = ()
    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    qkv_clip: float | None = None
    qk_norm: Literal["none", "head", "heads", "all"] = "none"
    qk_norm_after_rope: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    post_norms_of_sum: bool = False
    final_norm: bool = True
    embedding_size: int | None = None
    parallel_residual: bool = False
    shared_norm: bool = False
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    gated_mlp: bool = True
    activation: Activation | PlainActivation = "silu"

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
        narrow = self.embedding_size
        if narrow is not None and (isinstance(narrow, bool) or not isinstance(narrow, int) or narrow < 1):
            raise UnsupportedModelError(f"the model's config has embedding_size={narrow!r}; a positive integer is "
                                        "needed")
        if self.norm_eps != 0:
            require_positive("norm_eps", self.norm_eps)
        activations = tuple(ACTIVATIONS if self.gated_mlp else get_args(PlainActivation))
        if self.activation not in activations:
            raise UnsupportedModelError(f"the model's config has the activation {self.activation!r}; supported: "
                                        + ", ".join(activations))
        for name in ("attention_scale", "attention_soft_cap", "logit_soft_cap", "embedding_scale", "residual_scale",
                     "logit_scale", "qkv_clip"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads={self.num_heads} is not a multiple of num_key_value_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim={self.head_dim} is odd; rotary embeddings need an even one")
        if self.alibi_slopes is not None and len(self.alibi_slopes) != self.num_heads:
            raise UnsupportedModelError(f"alibi_slopes has {len(self.alibi_slopes)} numbers, one for each of the "
                                        f"{self.num_heads} heads is needed")
        for rope in self.ropes:
            if rope is not None:
                rope.inverse_frequencies(self.head_dim)  # which says what does not fit the head

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
