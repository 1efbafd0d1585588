"""The building blocks of a decoder, as NNX modules whose parameters are described (``ShapeDtypeStruct``) before they
exist: the same description serves initialization, loading, sharding and ahead-of-time compilation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, DTypeLike, Float, Int

from jaxllm.models.linear import head_linear, linear, rows_at
from jaxllm.models.shard import Shard, summed
from pallas_kernels import rms_norm
from pallas_kernels.reductions import row_sum


def parameter(shape: tuple[int, ...], dtype: DTypeLike, axes: tuple[str | None, ...]) -> nnx.Param:
    """An abstract parameter with logical axis names, which a rules object maps to mesh axes."""
    return nnx.Param(jax.ShapeDtypeStruct(shape, dtype), axes=axes)


class Linear(nnx.Module):
    """``x @ weight.T + bias``. The weight is stored ``[out, in]``: on CPUs that layout is both the faster one and the
    one whose row results do not depend on the number of rows.

    shard: where each device has some columns: products are added up over the devices, before the bias is added.
    """

    def __init__(self, size_in: int, size_out: int, axes: tuple[str | None, str | None], dtype: DTypeLike,
                 *, bias: bool = False, shard: Shard | None = None) -> None:
        self.weight = parameter((size_out, size_in), dtype, axes)
        self.bias = parameter((size_out,), dtype, axes[:1]) if bias else None
        self.shard = shard

    def __call__(self, x: Float[Array, "T I"]) -> Float[Array, "T O"]:
        y = summed(self.shard, linear(x, self.weight.get_value()))
        return y if self.bias is None else y + self.bias[...]


class HeadLinear(nnx.Module):
    """``x[:, head] @ weight[head].T``: a product of each head's own, its weight ``[heads, out, in]``."""

    def __init__(self, heads: int, size_in: int, size_out: int, dtype: DTypeLike) -> None:
        self.weight = parameter((heads, size_out, size_in), dtype, ("heads", None, None))

    def __call__(self, x: Float[Array, "T N I"]) -> Float[Array, "T N O"]:
        return head_linear(x, self.weight[...])


class RMSNorm(nnx.Module):
    """Root-mean-square normalization (Zhang and Sennrich 2019) over the last axis.

    size: of the weights; a multiple of the last axis' where the axis before it has weights of its own.
    offset: added to the weights, in float32. axis: the logical name of the weights' axis.
    """

    def __init__(self, size: int, epsilon: float, dtype: DTypeLike, *, offset: float = 0.0, axis: str | None = None
                 ) -> None:
        self.weight = parameter((size,), dtype, (axis,))
        self.epsilon = epsilon
        self.offset = offset

    @jax.named_scope("norm")
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        weight, size = self.weight[...], x.shape[-1]
        return rms_norm(x, weight if weight.shape == (size,) else weight.reshape(-1, size), self.epsilon, self.offset)

    @jax.named_scope("norm")
    def scaled(self, x: Float[Array, "T D"], mean_square: Float[Array, " T"]) -> Float[Array, "T D"]:
        """Normalized by a mean square that is known: that of more than these columns."""
        normed = x.astype(jnp.float32) * jax.lax.rsqrt(mean_square + self.epsilon)[:, None]
        return (normed * (self.weight[...].astype(jnp.float32) + self.offset)).astype(x.dtype)


class UnitNorm(nnx.Module):
    """Root-mean-square normalization over the last axis, without weights."""

    def __init__(self, epsilon: float) -> None:
        self.epsilon = epsilon

    @jax.named_scope("norm")
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        return rms_norm(x, jnp.ones(x.shape[-1], x.dtype), self.epsilon)


class LayerNorm(nnx.Module):
    """Layer normalization (Ba et al. 2016) over the last axis, in float32, summed in a fixed order.

    size, offset, axis: as of ``RMSNorm``. bias: whether there is one.
    """

    def __init__(self, size: int, epsilon: float, dtype: DTypeLike, *, offset: float = 0.0, bias: bool = False,
                 axis: str | None = None) -> None:
        self.weight = parameter((size,), dtype, (axis,))
        self.bias = parameter((size,), dtype, (axis,)) if bias else None
        self.epsilon = epsilon
        self.offset = offset

    @jax.named_scope("norm")
    def __call__(self, x: Float[Array, "*rows D"]) -> Float[Array, "*rows D"]:
        wide = x.astype(jnp.float32)
        # Apart from what is around them: their last bits would depend on the batch otherwise.
        mean = jax.lax.optimization_barrier(row_sum(wide) / x.shape[-1])
        wide = jax.lax.optimization_barrier(wide - mean[..., None])
        mean_square = row_sum(wide * wide) / x.shape[-1]
        normed = wide * jax.lax.rsqrt(mean_square + self.epsilon)[..., None]
        weight = self._wide(self.weight, x)
        normed = normed * (weight + self.offset if self.offset else weight)
        if self.bias is not None:
            # Whether XLA makes one operation of a product and a sum, and rounds once, would depend on the batch.
            normed = jax.lax.optimization_barrier(normed) + self._wide(self.bias, x)
        return normed.astype(x.dtype)

    @staticmethod
    def _wide(parameter: nnx.Param, x: Float[Array, "*rows D"]) -> Float[Array, "heads D"]:
        return parameter[...].astype(jnp.float32).reshape(-1, x.shape[-1])


Norm = RMSNorm | LayerNorm


class Embedding(nnx.Module):
    """Rows of a table ``[vocabulary, width]`` by token id, times ``scale``, both rounded to the dtype.

    axis: the logical name of the rows. shard: where each device has ``vocab_size`` of them.
    """

    def __init__(self, vocab_size: int, size: int, dtype: DTypeLike, scale: float = 1.0, *, axis: str = "vocab",
                 shard: Shard | None = None) -> None:
        self.weight = parameter((vocab_size, size), dtype, (axis, "embed"))
        self.dtype = dtype
        self.scale = scale
        self.shard, self.rows = shard, vocab_size

    @jax.named_scope("embedding")
    def __call__(self, token_ids: Int[Array, " T"]) -> Float[Array, "T D"]:
        if self.shard is None:
            rows = rows_at(self.weight.get_value(), token_ids, self.dtype)
        else:
            places = token_ids - self.shard.index() * self.rows
            own = (places >= 0) & (places < self.rows)
            rows = rows_at(self.weight.get_value(), jnp.where(own, places, 0), self.dtype)
            rows = self.shard.sum(jnp.where(own[:, None], rows, 0))
        return rows if self.scale == 1 else rows * jnp.asarray(self.scale, self.dtype)
