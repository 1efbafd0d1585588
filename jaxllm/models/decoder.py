"""The decoder: one NNX module tree, configured by ``DecoderConfig``, that reads and writes a paged KV cache."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from jaxllm.models.config import DecoderConfig
from jaxllm.models.layers import Embedding, Linear, RMSNorm
from jaxllm.models.linear import gated_linear
from jaxllm.models.step import LayerCache, StepContext
from pallas_kernels import paged_attention, rope_kv_write


class Attention(nnx.Module):
    """Grouped-query attention over the paged cache; q, k and v are one fused product."""

    def __init__(self, config: DecoderConfig, layer: int, dtype: DTypeLike) -> None:
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        self.split = (heads, kv_heads, size)
        self.window = config.window_of(layer)
        self.rope = config.rope_of(layer)
        self.scale = size**-0.5 if config.attention_scale is None else config.attention_scale
        self.soft_cap = config.attention_soft_cap
        self.qkv = Linear(config.hidden_size, (heads + 2 * kv_heads) * size, ("heads", "embed"), dtype,
                          bias=config.attention_bias)
        self.normed_heads = (heads, kv_heads) if config.qk_norm == "all" else (1, 1)
        self.q_norm, self.k_norm = (None if config.qk_norm == "none" else norm(config, dtype, normed * size)
                                    for normed in self.normed_heads)
        self.out = Linear(heads * size, config.hidden_size, ("embed", "heads"), dtype,
                          bias=config.attention_output_bias)

    def __call__(self, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
                 ) -> tuple[Float[Array, "T D"], LayerCache]:
        heads, kv_heads, size = self.split
        qkv = self.qkv(x).reshape(x.shape[0], heads + 2 * kv_heads, size)
        if self.q_norm is not None and self.k_norm is not None:
            q, k, v = jnp.split(qkv, (heads, heads + kv_heads), axis=1)
            q, k = (each_norm(part.reshape(x.shape[0], -1, each * size)).reshape(part.shape) for each_norm, part, each
                    in zip((self.q_norm, self.k_norm), (q, k), self.normed_heads, strict=True))
            # Whether XLA computes the norms within the rotary embedding, and rounds less, would depend on the batch.
            qkv = jax.lax.optimization_barrier(jnp.concatenate([q, k, v], axis=1))
        cos, sin = step.rotary[self.rope]
        k_pool, v_pool, q = rope_kv_write(cache["k"], cache["v"], qkv, cos, sin, step.slots)
        attended = paged_attention(q, k_pool, v_pool, step.attention, scale=self.scale, window=self.window,
                                   soft_cap=self.soft_cap)
        return self.out(attended.reshape(x.shape[0], heads * size)), {"k": k_pool, "v": v_pool}


class GatedMLP(nnx.Module):
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020, GLU variants); gate and up are one fused product."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        self.activation = config.activation
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, ("mlp", "embed"), dtype,
                              bias=config.mlp_bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, ("embed", "mlp"), dtype, bias=config.mlp_bias)

    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        bias = None if self.gate_up.bias is None else self.gate_up.bias[...]
        return self.down(gated_linear(x, self.gate_up.weight.get_value(), bias, self.activation))


class DecoderLayer(nnx.Module):
    """Attention and MLP, each between norms of its own, if there are any, and each added to the residual stream."""

    def __init__(self, config: DecoderConfig, layer: int, dtype: DTypeLike) -> None:
        self.residual_scale = config.residual_scale
        self.attention_norm = norm(config, dtype) if config.pre_norms else None
        self.attention = Attention(config, layer, dtype)
        self.attention_post_norm = norm(config, dtype) if config.post_norms else None
        self.mlp_norm = norm(config, dtype) if config.pre_norms else None
        self.mlp = GatedMLP(config, dtype)
        self.mlp_post_norm = norm(config, dtype) if config.post_norms else None

    def __call__(self, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
                 ) -> tuple[Float[Array, "T D"], LayerCache]:
        with jax.named_scope("attention"):
            attended, cache = self.attention(_normed(x, self.attention_norm), step, cache)
            x = self._add(x, attended, self.attention_post_norm)
        with jax.named_scope("mlp"):
            x = self._add(x, self.mlp(_normed(x, self.mlp_norm)), self.mlp_post_norm)
        return x, cache

    def _add(self, x: Float[Array, "T D"], part: Float[Array, "T D"], norm: RMSNorm | None) -> Float[Array, "T D"]:
        if norm is None and self.residual_scale == 1:
            return x + part
        part = _normed(part, norm)
        if self.residual_scale != 1:
            part = (part.astype(jnp.float32) * self.residual_scale).astype(x.dtype)
        # Whether XLA makes one operation of a product and this sum, and rounds once, would depend on the batch.
        return x + jax.lax.optimization_barrier(part)


def _normed(x: Float[Array, "T D"], norm: RMSNorm | None) -> Float[Array, "T D"]:
    return x if norm is None else norm(x)


def norm(config: DecoderConfig, dtype: DTypeLike, size: int | None = None) -> RMSNorm:
    """A norm over the model's width, or over ``size``."""
    return RMSNorm(size or config.hidden_size, config.rms_norm_eps, dtype, config.norm_offset)


class Decoder(nnx.Module):
    """The parts of a decoder, built abstract: parameters are shapes until ``nnx.merge`` puts arrays in their place.

    ``Model`` runs the parts one after another: embedding, layers, norm, and the head on the rows that need logits.
    """

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        self.embedding = Embedding(config.vocab_size, config.hidden_size, dtype, config.embedding_scale)
        self.layers = nnx.List([DecoderLayer(config, layer, dtype) for layer in range(config.num_layers)])
        self.norm = norm(config, dtype)
        if not config.tie_word_embeddings:
            self.head = Linear(config.hidden_size, config.vocab_size, ("vocab", "embed"), dtype)


@functools.partial(jax.jit, static_argnums=0)
def run_layer(graph: nnx.GraphDef, parameters: Any, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
              ) -> tuple[Float[Array, "T D"], LayerCache]:
    """One layer as a function of its own: layers of the same shapes are then traced once, not once each."""
    return nnx.merge(graph, parameters)(x, step, cache)
