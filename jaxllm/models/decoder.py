"""The decoder: one NNX module tree, configured by ``DecoderConfig``, that reads and writes a paged KV cache."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from jaxllm.models.config import DecoderConfig
from jaxllm.models.latent_attention import LatentAttention
from jaxllm.models.layers import Embedding, LayerNorm, Linear, Norm, RMSNorm, UnitNorm, parameter
from jaxllm.models.mlp import GatedMLP, PlainMLP
from jaxllm.models.moe import MoE
from jaxllm.models.rope_tables import in_halves, turns_halves
from jaxllm.models.shard import Shard
from jaxllm.models.step import LayerCache, StepContext
from pallas_kernels import paged_attention, rope_kv_write
from pallas_kernels.reductions import row_sum
from pallas_kernels.rope_kv_write import rotate


class Attention(nnx.Module):
    """Grouped-query attention over the paged cache; q, k and v are one fused product."""

    def __init__(self, config: DecoderConfig, layer: int, dtype: DTypeLike) -> None:
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        self.split, self.shard = (heads, kv_heads, size), config.shard
        self.window, self.chunk = config.window_of(layer), config.chunk_of(layer)
        self.table = config.rope_of(layer)
        self.rope = config.ropes[self.table]
        self.scale = size**-0.5 if config.attention_scale is None else config.attention_scale
        self.soft_cap = config.attention_soft_cap
        self.slopes = config.alibi_slopes
        self.sinks = parameter((heads,), dtype, ("heads",)) if config.attention_sinks else None
        self.clip = config.qkv_clip
        self.qkv = Linear(config.hidden_size, (heads + 2 * kv_heads) * size, ("qkv", "embed"), dtype,
                          bias=config.attention_bias)
        # How many heads are normalized as one, and how many have weights of their own.
        self.normed_heads = (heads, kv_heads) if config.qk_norm == "all" else (1, 1)
        self.normed_as_one = config.qk_norm == "all"
        owners = (1, 1) if config.qk_norm == "head" else (heads, kv_heads)
        axes = (None, None) if config.qk_norm == "head" else ("heads", "kv_heads")
        self.q_norm, self.k_norm = (self._norm(config, dtype, each * size, axis)
                                    for each, axis in zip(owners, axes, strict=True))
        self.temperature = config.attention_temperature if self.rope is None else None
        self.interval, self.last = config.temperature_interval, config.max_position_embeddings
        self.norm_after_rope = config.qk_norm_after_rope
        self.out = Linear(heads * size, config.hidden_size, ("embed", "heads"), dtype,
                          bias=config.attention_output_bias, shard=config.shard)

    def _norm(self, config: DecoderConfig, dtype: DTypeLike, size: int, axis: str | None) -> Norm | UnitNorm | None:
        """Of queries or keys, ``size`` weights."""
        if config.qk_norm == "unit":
            return None if self.rope is None else UnitNorm(config.norm_eps)
        return None if config.qk_norm == "none" else norm(config, dtype, size, axis)

    def __call__(self, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
                 ) -> tuple[Float[Array, "T D"], LayerCache]:
        heads, kv_heads, size = self.split
        qkv = self.qkv(x).reshape(x.shape[0], heads + 2 * kv_heads, size)
        if self.clip is not None:
            qkv = jnp.clip(qkv, -self.clip, self.clip)
        cos, sin = step.rotary[self.table]
        if self.norm_after_rope:
            qkv = self._change(qkv, lambda q, k: (rotate(q, cos, sin), rotate(k, cos, sin)))
            cos, sin = jnp.ones_like(cos), jnp.zeros_like(sin)
        if self.q_norm is not None:
            qkv = self._change(qkv, self._normalize)
        if not turns_halves(self.rope, size):
            qkv = self._change(qkv, lambda q, k: (in_halves(q, self.rope), in_halves(k, self.rope)))
        if self.temperature is not None:
            factors = self._temperatures(step.positions)[:, None, None]
            qkv = self._change(qkv, lambda q, k: ((q.astype(jnp.float32) * factors).astype(q.dtype), k))
        k_pool, v_pool, q = rope_kv_write(cache["k"], cache["v"], qkv, cos, sin, step.slots)
        slopes = None if self.slopes is None else jnp.asarray(self.slopes, jnp.float32)
        if slopes is not None and self.shard is not None:
            slopes = self.shard.own(slopes, heads)
        sinks = None if self.sinks is None else self.sinks[...].astype(jnp.float32)
        attended = paged_attention(q, k_pool, v_pool, step.attention, scale=self.scale, window=self.window,
                                   chunk=self.chunk, soft_cap=self.soft_cap, sinks=sinks, alibi_slopes=slopes)
        return self.out(attended.reshape(x.shape[0], heads * size)), {"k": k_pool, "v": v_pool}

    def _change(self, qkv: Float[Array, "T NKK H"], function: Callable[[Array, Array], tuple[Array, Array]]
                ) -> Float[Array, "T NKK H"]:
        """The product with its queries and keys changed, rounded to its dtype."""
        heads, kv_heads, _ = self.split
        q, k, v = jnp.split(qkv, (heads, heads + kv_heads), axis=1)
        # Whether XLA computes this within the rotary embedding, and rounds less, would depend on the batch.
        return jax.lax.optimization_barrier(jnp.concatenate([*function(q, k), v], axis=1))

    def _temperatures(self, positions: Int[Array, " T"]) -> Float[Array, " T"]:
        """What queries are multiplied by: of a table, so that nothing depends on how the logarithm is computed."""
        assert self.temperature is not None
        intervals = np.arange((self.last + 1) // self.interval + 1)
        table = (1 + self.temperature * np.log1p(intervals)).astype(np.float32)
        return jnp.asarray(table).at[(positions + 1) // self.interval].get(mode="clip")

    def _normalize(self, q: Float[Array, "T N H"], k: Float[Array, "T K H"]) -> tuple[Array, Array]:
        assert self.q_norm is not None
        assert self.k_norm is not None
        if self.shard is not None and self.normed_as_one:
            return self._normalize_over_devices(q, k, self.shard)
        q_width, k_width = (each * self.split[2] for each in self.normed_heads)
        return (self.q_norm(q.reshape(len(q), -1, q_width)).reshape(q.shape),
                self.k_norm(k.reshape(len(k), -1, k_width)).reshape(k.shape))

    def _normalize_over_devices(self, q: Float[Array, "T N H"], k: Float[Array, "T K H"], shard: Shard
                                ) -> tuple[Array, Array]:
        """All devices' heads normalized as one, by root mean square: the squares are added up over the devices."""
        assert isinstance(self.q_norm, RMSNorm)
        assert isinstance(self.k_norm, RMSNorm)
        flat = q.reshape(len(q), -1), k.reshape(len(k), -1)
        squares = shard.sum(jnp.stack([row_sum(jnp.square(part.astype(jnp.float32))) for part in flat], axis=1))
        sizes = shard.size * flat[0].shape[1], shard.size * flat[1].shape[1]
        # Copies of a kv head are in the sum and in the size alike.
        return (self.q_norm.scaled(flat[0], squares[:, 0] / sizes[0]).reshape(q.shape),
                self.k_norm.scaled(flat[1], squares[:, 1] / sizes[1]).reshape(k.shape))


class DecoderLayer(nnx.Module):
    """Attention and MLP, each between norms of its own, if there are any, and each added to the residual stream, one
    after the other or side by side."""

    def __init__(self, config: DecoderConfig, layer: int, dtype: DTypeLike) -> None:
        self.residual_scale = config.residual_scale
        self.norms_sum = config.post_norms_of_sum
        self.parallel, self.shared_norm = config.parallel_residual, config.shared_norm
        self.attention_norm = norm(config, dtype) if config.pre_norms else None
        self.attention = (Attention(config, layer, dtype) if config.latent is None else
                          LatentAttention(config, config.latent, layer, dtype))
        self.attention_post_norm = norm(config, dtype) if config.post_norms else None
        self.mlp_norm = norm(config, dtype) if config.pre_norms and not config.shared_norm else None
        self.mlp = mlp(config, layer, dtype)
        self.mlp_post_norm = norm(config, dtype) if config.post_norms else None

    def __call__(self, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
                 ) -> tuple[Float[Array, "T D"], LayerCache]:
        with jax.named_scope("attention"):
            attention_input = _normed(x, self.attention_norm)
            attended, cache = self.attention(attention_input, step, cache)
            mlp_input = attention_input if self.shared_norm else x
            x = self._add(x, attended, self.attention_post_norm)
        with jax.named_scope("mlp"):
            mlp_input = _normed(mlp_input if self.parallel else x, self.mlp_norm)
            computed = self.mlp(mlp_input, step.valid) if isinstance(self.mlp, MoE) else self.mlp(mlp_input)
            x = self._add(x, computed, self.mlp_post_norm)
        return x, cache

    def _add(self, x: Float[Array, "T D"], part: Float[Array, "T D"], norm: Norm | None) -> Float[Array, "T D"]:
        if self.norms_sum:
            # As below: the sum is rounded to the stream's dtype before it is normalized.
            return _normed(jax.lax.optimization_barrier(x + part), norm)
        if norm is None and self.residual_scale == 1:
            return x + part
        part = _normed(part, norm)
        if self.residual_scale != 1:
            part = (part.astype(jnp.float32) * self.residual_scale).astype(x.dtype)
        # Whether XLA makes one operation of a product and this sum, and rounds once, would depend on the batch.
        return x + jax.lax.optimization_barrier(part)


def _normed(x: Float[Array, "T D"], norm: Norm | None) -> Float[Array, "T D"]:
    return x if norm is None else norm(x)


def mlp(config: DecoderConfig, layer: int, dtype: DTypeLike) -> MoE | GatedMLP | PlainMLP:
    """A layer's MLP, or the experts in its place."""
    if config.moe is not None and layer not in config.moe.dense_layers:
        return MoE(config, dtype)
    return GatedMLP(config, dtype) if config.gated_mlp else PlainMLP(config, dtype)


def norm(config: DecoderConfig, dtype: DTypeLike, size: int | None = None, axis: str | None = None) -> Norm:
    """A norm over the model's width, or one of ``size`` weights, without a bias. axis: the weights' logical name."""
    width, epsilon, offset = size or config.hidden_size, config.norm_eps, config.norm_offset
    if config.norm == "layer":
        return LayerNorm(width, epsilon, dtype, offset=offset, bias=config.norm_bias and size is None,
                         axis=axis)
    return RMSNorm(width, epsilon, dtype, offset=offset, axis=axis)


class Decoder(nnx.Module):
    """The parts of a decoder, built abstract: parameters are shapes until ``nnx.merge`` puts arrays in their place.

    ``Model`` runs the parts one after another: embedding, layers, norm, and the head on the rows that need logits.
    """

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        width = config.embedding_size or config.hidden_size
        self.embedding = Embedding(config.vocab_size, width, dtype, config.embedding_scale, shard=config.shard)
        if config.embedding_size is not None:
            self.project_in = Linear(width, config.hidden_size, (None, "embed"), dtype)
            self.project_out = Linear(config.hidden_size, width, ("embed", None), dtype)
        if config.learned_positions:
            self.positions = Embedding(config.position_offset + config.max_position_embeddings, config.hidden_size,
                                       dtype, axis="positions")
        if config.embedding_norm:
            self.embedding_norm = norm(config, dtype)
        self.layers = nnx.List([DecoderLayer(config, layer, dtype) for layer in range(config.num_layers)])
        if config.final_norm:
            self.norm = norm(config, dtype)
        if not config.tie_word_embeddings:
            self.head = Linear(width, config.vocab_size, ("vocab", "embed"), dtype, bias=config.head_bias)


@functools.partial(jax.jit, static_argnums=0)
def run_layer(graph: nnx.GraphDef, parameters: Any, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
              ) -> tuple[Float[Array, "T D"], LayerCache]:
    """One layer as a function of its own: layers of the same shapes are then traced once, not once each."""
    return nnx.merge(graph, parameters)(x, step, cache)
