"""The mixture-of-experts layer: a router, experts that tokens are sorted by, and what every token takes besides."""

from __future__ import annotations

import functools
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Int32

from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.exchange import Exchange
from jaxllm.models.layers import parameter
from jaxllm.models.linear import grouped_linear, linear
from jaxllm.models.mlp import GatedMLP
from jaxllm.models.routing import Routes, route
from jaxllm.models.shard import Shard, summed
from pallas_kernels.gated_matmul import Activation, gate
from pallas_kernels.reductions import row_sum


class Router(nnx.Module):
    """Weights and numbers of the experts that tokens take, of logits in float32."""

    def __init__(self, size_in: int, config: MoEConfig, dtype: DTypeLike) -> None:
        self.config = config
        self.weight = parameter((config.num_experts, size_in), dtype, ("router", "embed"))
        self.bias = parameter((config.num_experts,), dtype, ("router",)) if config.bias else None
        # Float32 in any case, as checkpoints keep it: it is trained in steps that are smaller than bfloat16's.
        self.correction = parameter((config.num_experts,), jnp.float32, ("router",)) if config.correction else None

    def __call__(self, x: Float[Array, "T D"]) -> Routes:
        logits = linear(x, self.weight.get_value(), jnp.float32)
        if self.bias is not None:
            logits = logits + self.bias[...].astype(jnp.float32)
        return route(logits, self.config, None if self.correction is None else self.correction[...])


class ExpertLinear(nnx.Module):
    """A matrix for each expert, all in one, ``[E * out, in]``: the first expert's rows, then the second's; and a bias
    for each, ``[E * out]``, if they have any.

    shard: where each device has some columns of each: the first device alone adds the bias.
    """

    def __init__(self, num_experts: int, size_in: int, size_out: int, axes: tuple[str, str], dtype: DTypeLike, *,
                 bias: bool = False, shard: Shard | None = None) -> None:
        self.weight = parameter((num_experts * size_out, size_in), dtype, axes)
        self.bias = parameter((num_experts * size_out,), dtype, axes[:1]) if bias else None
        self.shard = shard

    def __call__(self, x: Float[Array, "N I"], sizes: Int32[Array, " E"]) -> Float[Array, "N O"]:
        """Of rows that are sorted by expert, ``sizes`` each."""
        y = grouped_linear(x, self.weight.get_value(), sizes)
        if self.bias is None:
            return y
        row, ends = jnp.arange(x.shape[0]), jnp.cumsum(sizes)
        expert = jnp.sum(ends[None, :] <= row[:, None], axis=1)
        bias = self.bias[...].reshape(sizes.shape[0], -1).at[expert].get(mode="clip")
        return y + (bias if self.shard is None else jnp.where(self.shard.is_first(), bias, 0))


class Experts(nnx.Module):
    """``down(activation(gate(x)) * up(x))`` of each expert."""

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        assert config.moe is not None
        self.activation = cast("Activation", config.activation)
        self.limit, self.slope = config.moe.gate_limit, config.moe.gate_slope
        count, size, bias = config.moe.num_experts, config.moe.expert_size, config.moe.bias
        shard = config.shard
        if config.exchange is not None:
            count, shard = count // config.exchange.devices, None
        elif shard is not None and shard.by_expert:
            count, shard = count // shard.size, None
        self.gate_up = ExpertLinear(count, config.hidden_size, 2 * size, ("expert_gate_up", "embed"), dtype, bias=bias)
        self.down = ExpertLinear(count, size, config.hidden_size, ("expert_down", "expert_mlp"), dtype, bias=bias,
                                 shard=shard)

    def __call__(self, x: Float[Array, "N D"], sizes: Int32[Array, " E"]) -> Float[Array, "N D"]:
        """Of rows that are sorted by expert; those past the last expert's are of no use."""
        product = self.gate_up(x, sizes)
        gated = (gate(product, self.activation) if self.limit is None else
                 clamped_gate(product, self.limit, self.slope))
        return self.down(gated, sizes)


def clamped_gate(product: Float[Array, "N 2F"], limit: float, slope: float) -> Float[Array, "N F"]:
    """gpt-oss' gate, in float32, rounded once: see ``MoEConfig.gate_limit``."""
    gates, up = jnp.split(product.astype(jnp.float32), 2, axis=-1)
    gates, up = jnp.minimum(gates, limit), jnp.clip(up, -limit, limit)
    opened = gates * jax.nn.sigmoid(slope * gates)
    return (jax.lax.optimization_barrier(opened) * (up + 1)).astype(product.dtype)


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

    Where several devices share the work, each adds up what its experts give, or its part of each expert's width, and
    of the shared MLP's; one sum over the devices makes the whole of it. Where experts are spread over replicas too
    (``Exchange``), tokens go to their experts' devices, and what these make of them comes back and is added up where
    the tokens are, in the same order as on one device.
    """

    def __init__(self, config: DecoderConfig, dtype: DTypeLike) -> None:
        assert config.moe is not None
        self.config, self.shard, self.exchange = config.moe, config.shard, config.exchange
        self.router = Router(config.hidden_size, config.moe, dtype)
        self.experts = Experts(config, dtype)
        shared = config.moe.shared_size
        self.shared = None if shared is None else GatedMLP(config, dtype, shared, summed=False)
        self.shared_gate = SharedGate(config.hidden_size, dtype) if config.moe.shared_gate else None

    def __call__(self, x: Float[Array, "T D"], valid: Bool[Array, " T"]) -> Float[Array, "T D"]:
        """valid: the tokens that there are; the others, which fill up the step, are given to no expert."""
        with jax.named_scope("router"):
            weights, experts = self.router(x)
        experts = jnp.where(valid[:, None], experts, self.config.num_experts)
        if self.exchange is not None:
            total = self._exchanged(self.exchange, x, weights, experts)
        else:
            with jax.named_scope("experts"):
                total = self._add_up(x, weights, experts)
        shared = self._of_shared(x)
        return summed(self.shard, (total if shared is None else total + shared).astype(x.dtype))

    def _of_shared(self, x: Float[Array, "T D"]) -> Float[Array, "T D"] | None:
        """What the MLP that all tokens share gives, or this device's part of that, in float32."""
        if self.shared is None:
            return None
        shared = self.shared(x).astype(jnp.float32)
        return shared if self.shared_gate is None else jax.lax.optimization_barrier(shared * self.shared_gate(x))

    def _exchanged(self, exchange: Exchange, x: Float[Array, "T D"], weights: Float[Array, "T A"],
                   experts: Int[Array, "T A"]) -> Float[Array, "T D"]:
        """As ``_add_up``, where experts are spread over replicas: of the rows that this device has sent."""
        count, own = self.config.num_experts, exchange.own_rows(weights)
        with jax.named_scope("send"):
            sent = exchange.send(exchange.own_rows(x), exchange.own_rows(experts, count), count,
                                 own if self.config.weigh_inputs else None)
        with jax.named_scope("experts"):
            results = self._of_each(sent.rows, sent.numbers, sent.experts, count // exchange.devices)
        with jax.named_scope("give_back"):
            parts = exchange.give_back(results, sent)
        return exchange.at_own_place(
            _sum_in_order(parts.astype(jnp.float32) if self.config.weigh_inputs else _weighted(parts, own)), x.shape[0])

    def _add_up(self, x: Float[Array, "T D"], weights: Float[Array, "T A"], experts: Int[Array, "T A"]
                ) -> Float[Array, "T D"]:
        """The weighted sum of experts' results, in float32."""
        count, own = self.config.num_experts, None
        if self.shard is not None and self.shard.by_expert:
            count //= self.shard.size
            experts = experts - self.shard.index() * count
            own = (experts >= 0) & (experts < count)
            experts = jnp.where(own, experts, count)
        parts = self._of_each(x, weights, experts, count)
        parts = parts.astype(jnp.float32) if self.config.weigh_inputs else _weighted(parts, weights)
        return _sum_in_order(parts if own is None else jnp.where(own[..., None], parts, 0))

    def _of_each(self, x: Float[Array, "T D"], weights: Float[Array, "T A"] | None, experts: Int[Array, "T A"],
                 count: int) -> Float[Array, "T A D"]:
        """What each of a row's experts makes of it; of no use where the expert is ``count``, which is none of these.

        weights: what inputs are weighed with, if they are.
        """
        tokens, each = experts.shape
        chosen = experts.reshape(-1)
        order = jnp.argsort(chosen)
        sizes = jnp.sum(chosen[:, None] == jnp.arange(count), axis=0, dtype=jnp.int32)
        inputs = x[order // each]
        if self.config.weigh_inputs:
            assert weights is not None
            inputs = _weighted(inputs, weights.reshape(-1)[order]).astype(x.dtype)
        results = self.experts(inputs, sizes)
        places = jnp.zeros_like(order).at[order].set(jnp.arange(order.shape[0], dtype=order.dtype))
        return results[places].reshape(tokens, each, -1)


def _sum_in_order(parts: Float[Array, "T A D"]) -> Float[Array, "T D"]:
    return functools.reduce(jnp.add, (parts[:, number] for number in range(parts.shape[1])))


def _weighted(x: Float[Array, "*rows D"], weights: Float[Array, "*rows"]) -> Float[Array, "*rows D"]:
    """``x`` times its rows' weights, in float32."""
    # Whether XLA makes one operation of a product and a sum, and rounds once, would depend on the batch.
    return jax.lax.optimization_barrier(x.astype(jnp.float32) * weights[..., None])
