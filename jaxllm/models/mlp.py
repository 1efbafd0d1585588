"""The MLPs of a decoder's layers, with and without a gate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float

from jaxllm.models.config import DecoderConfig, PlainActivation
from jaxllm.models.layers import Linear
from jaxllm.models.linear import gated_linear
from pallas_kernels.gated_matmul import Activation

_ACTIVATIONS: Mapping[PlainActivation, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),
}


class GatedMLP(nnx.Module):
    """``down(activation(gate(x)) * up(x))`` (Shazeer 2020, GLU variants); gate and up are one fused product.

    size: its width, if it is not the config's. summed: whether what several devices give is added up.
    """

    def __init__(self, config: DecoderConfig, dtype: DTypeLike, size: int | None = None, *, summed: bool = True
                 ) -> None:
        size = size or config.intermediate_size
        self.activation = cast("Activation", config.activation)
        self.gate_up = Linear(config.hidden_size, 2 * size, ("gate_up", "embed"), dtype, bias=config.mlp_bias)
        self.down = Linear(size, config.hidden_size, ("embed", "mlp"), dtype, bias=config.mlp_bias,
                           shard=config.shard if summed else None)

    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        bias = None if self.gate_up.bias is None else self.gate_up.bias[...]
        return self.down(gated_linear(x, self.gate_up.weight.get_value(), bias, self.activation))


class PlainMLP(nnx.Module):
    """``down(activation(up(x)))``, the activation in float32."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        self.activation = config.activation
        self.up = Linear(config.hidden_size, config.intermediate_size, ("mlp", "embed"), dtype, bias=config.mlp_bias)
        self.down = Linear(config.intermediate_size, config.hidden_size, ("embed", "mlp"), dtype, bias=config.mlp_bias,
                           shard=config.shard)

    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T D"]:
        hidden = _ACTIVATIONS[self.activation](self.up(x).astype(jnp.float32)).astype(x.dtype)
        return self.down(hidden)
