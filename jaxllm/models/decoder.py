"""The decoder: one NNX module tree, configured by ``DecoderConfig``, that reads and writes a paged KV cache."""

from __future__ import annotations

import functools
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from jaxllm.models.config import DecoderConfig
from jaxllm.models.layers import Embedding, Linear, RMSNorm
from jaxllm.models.linear import gated_linear
from jaxllm.models.step import LayerCache, StepContext
from pallas_kernels import paged_attention, rope_kv_write


class Attention(nnx.Module):
    """Grouped-query attention over the paged cache; q, k and v are one fused product."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
        self.split = (heads, kv_heads, size)
        self.window = config.sliding_window
        self.qkv = Linear(config.hidden_size, (heads + 2 * kv_heads) * size, ("heads", "embed"), dtype,
                          bias=config.attention_bias)
        self.out = Linear(heads * size, config.hidden_size, ("embed", "heads"), dtype,
                          bias=config.attention_output_bias)

    def __call__(self, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
                 ) -> tuple[Float[Array, "T D"], LayerCache]:
        heads, kv_heads, size = self.split
        qkv = self.qkv(x).reshape(x.shape[0], heads + 2 * kv_heads, size)
        k_pool, v_pool, q = rope_kv_write(cache["k"], cache["v"], qkv, step.cos, step.sin, step.slots)
        attended = paged_attention(q, k_pool, v_pool, step.attention, scale=size**-0.5, window=self.window)
        return self.out(attended.reshape(x.shape[0], heads * size)), {"k": k_pool, "v": v_pool}


class GatedMLP(nnx.Module):
    """``down(silu(gate(x)) * up(x))`` (Shazeer 2020, SwiGLU); gate and up are one fused product."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        self.gate_up = Linear(config.hidden_size, 2 * config.intermediate_size, ("mlp", "embed"), dtype,
                              bias=config.mlp_bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, ("embed", "mlp"), dtype, bias=config.mlp_bias)

    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        bias = None if self.gate_up.bias is None else self.gate_up.bias[...]
        return self.down(gated_linear(x, self.gate_up.weight.get_value(), bias))


class DecoderLayer(nnx.Module):
    """Attention and MLP, each behind its own norm, each added to the residual stream."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.attention = Attention(config, dtype)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = GatedMLP(config, dtype)

    def __call__(self, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
                 ) -> tuple[Float[Array, "T D"], LayerCache]:
        with jax.named_scope("attention"):
            attended, cache = self.attention(self.attention_norm(x), step, cache)
            x = x + attended
        with jax.named_scope("mlp"):
            x = x + self.mlp(self.mlp_norm(x))
        return x, cache


class Decoder(nnx.Module):
    """The parts of a decoder, built abstract: parameters are shapes until ``nnx.merge`` puts arrays in their place.

    ``Model`` runs the parts one after another: embedding, layers, norm, and the head on the rows that need logits.
    """

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        self.embedding = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = nnx.List([DecoderLayer(config, dtype) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        if not config.tie_word_embeddings:
            self.head = Linear(config.hidden_size, config.vocab_size, ("vocab", "embed"), dtype)


@functools.partial(jax.jit, static_argnums=0)
def run_layer(graph: nnx.GraphDef, parameters: Any, x: Float[Array, "T D"], step: StepContext, cache: LayerCache
              ) -> tuple[Float[Array, "T D"], LayerCache]:
    """One layer as a function of its own: layers of the same shapes are then traced once, not once each."""
    return nnx.merge(graph, parameters)(x, step, cache)
