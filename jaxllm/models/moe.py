"""The mixture-of-experts layer: a router, experts that tokens are sorted by, and what every token takes besides."""

from __future__ import annotations

import functools
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Int32

from jaxllm.models.config import DecoderConfig
from jaxllm.models.layers import parameter
from jaxllm.models.linear import grouped_linear, linear
from jaxllm.models.mlp import GatedMLP
from jaxllm.models.routing import route
from pallas_kernels.gated_matmul import Activation, gate
from pallas_kernels.reductions import row_sum


class Router(nnx.Module):
    """Logits of the experts, in float32."""

    def __init__(self, size_in: int, num_experts: int, dtype: DTypeLike) -> None:
        self.weight = parameter((num_experts, size_in), dtype, ("router", "embed"))

    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T E"]:
        return linear(x, self.weight.get_value(), jnp.float32)


class ExpertLinear(nnx.Module):
    """A matrix for each expert, all in one, ``[E * out, in]``: the first expert's rows, then the second's."""

    def __init__(self, num_experts: int, size_in: int, size_out: int, axes: tuple[str, str], dtype: DTypeLike) -> None:
        self.weight = parameter((num_experts * size_out, size_in), dtype, axes)

    def __call__(self, x: Float[Array, "N I"], sizes: Int32[Array, " E"]) -> Float[Array, "N O"]:
        """Of rows that are sorted by expert, ``sizes`` each."""
        return grouped_linear(x, self.weight.get_value(), sizes)


class Experts(nnx.Module):
    """``down(activation(gate(x)) * up(x))`` of each expert."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        assert config.moe is not None
        self.activation = cast("Activation", config.activation)
        count, size = config.moe.num_experts, config.moe.expert_size
        self.gate_up = ExpertLinear(count, config.hidden_size, 2 * size, ("experts", "embed"), dtype)
        self.down = ExpertLinear(count, size, config.hidden_size, ("experts", "mlp"), dtype)

    def __call__(self, x: Float[Array, "N D"], sizes: Int32[Array, " E"]) -> Float[Array, "N D"]:
        """Of rows that are sorted by expert; those past the last expert's are zero."""
        return self.down(gate(self.gate_up(x, sizes), self.activation), sizes)


class SharedGate(nnx.Module):
    """The sigmoid of a product with one row, in float32."""

    def __init__(self, size_in: int, dtype: DTypeLike) -> None:
        self.weight = parameter((1, size_in), dtype, ("router", "embed"))

    def __call__(self, x: Float[Array, "T D"]) -> Float[Array, "T 1"]:
        products = x.astype(jnp.float32) * self.weight[...].astype(jnp.float32)
        return jax.nn.sigmoid(jax.lax.optimization_barrier(row_sum(products)))[:, None]


class MoE(nnx.Module):
    """The experts that the router chooses for a token, weighted, and the MLP that all tokens share, if there is one.

    Each token is sorted in once for each of its experts, whatever their number: none is dropped. Its experts' results
    are added in the order of their scores, in float32, so that its bits do not depend on the other tokens.
    """

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        assert config.moe is not None
        self.config = config.moe
        self.router = Router(config.hidden_size, config.moe.num_experts, dtype)
        self.experts = Experts(config, dtype)
        shared = config.moe.shared_size
        self.shared = None if shared is None else GatedMLP(config, dtype, shared)
        self.shared_gate = SharedGate(config.hidden_size, dtype) if config.moe.shared_gate else None

    def __call__(self, x: Float[Array, "T D"], valid: Bool[Array, " T"]) -> Float[Array, "T D"]:
        """valid: the tokens that there are; the others, which fill up the step, are given to no expert."""
        with jax.named_scope("router"):
            weights, experts = route(self.router(x), self.config)
        with jax.named_scope("experts"):
            total = self._add_up(x, weights, jnp.where(valid[:, None], experts, self.config.num_experts))
        if self.shared is not None:
            shared = self.shared(x).astype(jnp.float32)
            if self.shared_gate is not None:
                shared = jax.lax.optimization_barrier(shared * self.shared_gate(x))
            total = total + shared
        return total.astype(x.dtype)

    def _add_up(self, x: Float[Array, "T D"], weights: Float[Array, "T A"], experts: Int[Array, "T A"]
                ) -> Float[Array, "T D"]:
        """The weighted sum of experts' results, in float32."""
        tokens, each = experts.shape
        chosen = experts.reshape(-1)
        order = jnp.argsort(chosen)
        sizes = jnp.sum(chosen[:, None] == jnp.arange(self.config.num_experts), axis=0, dtype=jnp.int32)
        results = self.experts(x[order // each], sizes)
        places = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=order.dtype))
        parts = results[places].reshape(tokens, each, -1).astype(jnp.float32) * weights[:, :, None]
        # Whether XLA makes one operation of a product and a sum, and rounds once, would depend on the batch.
        parts = jax.lax.optimization_barrier(parts)
        return functools.reduce(jnp.add, (parts[:, number] for number in range(each)))
