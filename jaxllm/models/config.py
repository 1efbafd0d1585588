"""``DecoderConfig``: one description that covers every decoder-only family; a family file only translates to it."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.exchange import Exchange
from jaxllm.models.moe_config import MoEConfig
from jaxllm.models.rope import RopeConfig, require_positive
from jaxllm.models.shard import Shard
from pallas_kernels.gated_matmul import ACTIVATIONS, Activation

__all__ = ["DecoderConfig", "LatentConfig", "MoEConfig", "PlainActivation", "RopeConfig"]

PlainActivation = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2"]
"""Of an MLP without a gate: ``gelu`` is exact, ``gelu_tanh`` approximate (Hendrycks and Gimpel 2016), ``relu2`` the
square of ``relu`` (So et al. 2021, Primer)."""


@dataclasses.dataclass(frozen=True)
class LatentConfig:
    """Sizes of latent attention (DeepSeek-AI 2024, DeepSeek-V2, section 2.1): per token the cache keeps one latent, of
    which each head's key and value are linear functions, and one rotated key for all heads.

    kv_rank: of the latent. q_rank: of the queries', which have none where it is ``None``. plain_dim, rope_dim: of a
    head's query and key, the parts without and with a rotary embedding. v_dim: of its values.
    """

    kv_rank: int
    q_rank: int | None
    plain_dim: int
    rope_dim: int
    v_dim: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name == "q_rank" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UnsupportedModelError(f"the model's latent attention has {field.name}={value!r}; a positive "
                                            "integer is needed")
        if self.rope_dim % 2:
            raise UnsupportedModelError(f"the model's latent attention rotates {self.rope_dim} dimensions; an even "
                                        "number is needed")

    @property
    def cached_dim(self) -> int:
        """What the cache keeps per token: latent and rotated key."""
        return self.kv_rank + self.rope_dim


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
    attention_chunk: positions are cut into chunks of so many, and a query sees the keys of its own; but for
        ``full_layers``.
    attention_temperature: in layers without rotary embedding a query at position p is multiplied by ``1 +
        attention_temperature * log(1 + floor((p + 1) / temperature_interval))``.
    attention_scale: factor of the scores; ``None`` is ``head_dim ** -0.5``. attention_soft_cap, logit_soft_cap: ``cap *
        tanh(x / cap)`` of the scores, of the logits.
    attention_sinks: whether each head has a score of its own that takes part in the softmax and has no value.
    qkv_clip: the largest magnitude of queries, keys and values.
    qk_norm: a norm of queries and of keys, over each "head" with the same weights, over each of the "heads" with
        weights of its own, over "all" of them at once, or over each head without weights in layers with a rotary
        embedding ("unit"); before the rotary embedding, or with
        ``qk_norm_after_rope`` after it.
    latent: of latent attention, which is computed as attention of all heads to one that has the latents as keys and
        values: ``num_kv_heads`` is 1 and ``head_dim`` what is cached per token.
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
    moe: the experts in place of MLPs, if there are any; their gates have the same activation.
    head_bias: whether the head has one.
    shard: where this is one device's part of a model (``jaxllm.parallel``): its numbers of heads, widths and
        vocabulary are then the device's, but for ``alibi_slopes`` and the number of experts, which are all devices'.
    exchange: where experts are spread over replicas, which then compute together: how tokens reach them.

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
    attention_chunk: int | None = None
    attention_temperature: float | None = None
    temperature_interval: int = 8192
    attention_scale: float | None = None
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None
    attention_sinks: bool = False
    qkv_clip: float | None = None
    qk_norm: Literal["none", "head", "heads", "all", "unit"] = "none"
    qk_norm_after_rope: bool = False
    latent: LatentConfig | None = None
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
    moe: MoEConfig | None = None
    shard: Shard | None = None
    exchange: Exchange | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim",
                     "intermediate_size", "max_position_embeddings"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UnsupportedModelError(f"the model's config has {name}={value!r}; a positive integer is needed")
        for name in ("sliding_window", "attention_chunk", "temperature_interval",
                     "embedding_size"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise UnsupportedModelError(f"the model's config has {name}={value!r}; a positive integer or null is "
                                            "needed")
        if self.attention_chunk is not None and self.sliding_window is not None:
            raise UnsupportedModelError(f"the model's config has sliding_window={self.sliding_window} and "
                                        f"attention_chunk={self.attention_chunk}; one of them is supported")
        if self.norm_eps != 0:
            require_positive("norm_eps", self.norm_eps)
        activations = tuple(ACTIVATIONS if self.gated_mlp else get_args(PlainActivation))
        if self.activation not in activations:
            raise UnsupportedModelError(f"the model's config has the activation {self.activation!r}; supported: "
                                        + ", ".join(activations))
        for name in ("attention_scale", "attention_temperature", "attention_soft_cap", "logit_soft_cap",
                     "embedding_scale", "residual_scale", "logit_scale", "qkv_clip"):
            if getattr(self, name) is not None:
                require_positive(name, getattr(self, name))
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads={self.num_heads} is not a multiple of num_key_value_heads={self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"head_dim={self.head_dim} is odd; rotary embeddings need an even one")
        all_heads = self.num_heads * (1 if self.shard is None else self.shard.size)
        if self.alibi_slopes is not None and len(self.alibi_slopes) != all_heads:
            raise UnsupportedModelError(f"alibi_slopes has {len(self.alibi_slopes)} numbers, one for each of the "
                                        f"{all_heads} heads is needed")
        if self.latent is not None:
            self._check_latent(self.latent)
        for rope in self.ropes:
            if rope is not None:
                rope.inverse_frequencies(self.head_dim)  # which says what does not fit the head

    def _check_latent(self, latent: LatentConfig) -> None:
        if (self.num_kv_heads, self.head_dim) != (1, latent.cached_dim):
            raise UnsupportedModelError(f"latent attention has num_kv_heads=1 and head_dim={latent.cached_dim}, not "
                                        f"{self.num_kv_heads} and {self.head_dim}")
        for name in ("sliding_window", "attention_chunk", "attention_soft_cap", "qkv_clip", "alibi_slopes"):
            if getattr(self, name) is not None:
                raise UnsupportedModelError(f"latent attention has no {name}={getattr(self, name)!r}")
        if self.qk_norm != "none" or self.attention_sinks:
            raise UnsupportedModelError(f"latent attention has no qk_norm={self.qk_norm!r} and no attention_sinks="
                                        f"{self.attention_sinks}")
        if self.attention_scale is None or self.rope is None or self.rope.rotary_dim != latent.rope_dim:
            raise UnsupportedModelError(f"latent attention needs an attention_scale, and a rope that rotates "
                                        f"{latent.rope_dim} dimensions")

    def window_of(self, layer: int) -> int | None:
        """How many keys a query of this layer sees; ``None`` if all before it."""
        return None if layer in self.full_layers else self.sliding_window

    def chunk_of(self, layer: int) -> int | None:
        """How large the chunks are that a query of this layer sees one of; ``None`` if it sees all."""
        return None if layer in self.full_layers else self.attention_chunk

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
