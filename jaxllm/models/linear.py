"""``linear``: the one door through which every matrix product with a weight goes, dispatched on the weight's type.

Quantization, adapters and deterministic products are new weight types registered here, not new model code. What
computes a plain weight's product is ``pallas_kernels.matmul``'s choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int, Int32

from jaxllm.weights.rows import QuantizedRows, RowParts
from pallas_kernels import (
    dequantize,
    gated_matmul,
    grouped_matmul,
    matmul,
    quantized_gated_matmul,
    quantized_grouped_matmul,
    quantized_matmul,
)
from pallas_kernels.gated_matmul import Activation, gate


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FixedOrder:
    """A plain weight whose products are added up in one order, whatever the number of rows, on GPUs too."""

    weight: Float[Array, "O I"]


def in_fixed_order(params: Any, wanted: bool = True) -> Any:
    """Parameters with the weights of products as ``FixedOrder``, within a trace; as they are, if that is not wanted."""
    if not wanted:
        return params

    def wrap(path: tuple[Any, ...], leaf: Array) -> Any:
        # Weights of norms have one axis, and a gate's single row is added up in one order in any case.
        named = isinstance(path[-1], jax.tree_util.DictKey) and path[-1].key == "weight"
        return FixedOrder(leaf) if named and leaf.ndim == 2 and leaf.shape[0] > 1 else leaf

    return jax.tree.map_with_path(wrap, params)


LinearFunction = Callable[[Float[Array, "T I"], Any, Any], Float[Array, "T O"]]

_BY_TYPE: dict[type, LinearFunction] = {}


def register_linear(kind: type, function: LinearFunction) -> None:
    """Let ``function(x, weight, out_dtype)`` serve weights of type ``kind`` (a pytree of arrays)."""
    _BY_TYPE[kind] = function


def linear(x: Float[Array, "T I"], weight: Any, out_dtype: DTypeLike | None = None) -> Float[Array, "T O"]:
    """``x @ weight.T`` with float32 accumulation, rounded once to ``out_dtype`` (default: the dtype of ``x``)."""
    out_dtype = x.dtype if out_dtype is None else out_dtype
    if isinstance(weight, jax.Array):
        return matmul(x, weight, out_dtype)
    function = _BY_TYPE.get(type(weight))
    if function is None:
        known = ", ".join(sorted(kind.__name__ for kind in _BY_TYPE)) or "none"
        raise TypeError(f"linear() has no implementation for weights of type {type(weight).__name__}; "
                        f"besides plain arrays these are registered: {known}")
    return function(x, weight, out_dtype)


def gated_linear(x: Float[Array, "T I"], weight: Any, bias: Float[Array, " 2F"] | None = None,
                 activation: Activation = "silu") -> Float[Array, "T F"]:
    """``activation(gate) * up`` in float32, where gate and up are the halves of ``linear(x, weight) + bias``; in the
    dtype of ``x``. Without a bias, plain weights go to ``pallas_kernels.gated_matmul``, those quantized in one way to
    ``quantized_gated_matmul``."""
    if isinstance(weight, jax.Array) and bias is None:
        return gated_matmul(x, weight, activation)
    if isinstance(weight, QuantizedRows) and bias is None:
        return quantized_gated_matmul(x, weight.blocks, weight.kind, weight.scale, activation)
    product = linear(x, weight)
    return gate(product if bias is None else product + bias, activation)


def grouped_linear(x: Float[Array, "T I"], weight: Any, group_sizes: Int32[Array, " E"]) -> Float[Array, "T O"]:
    """``linear`` of each group of rows with a weight of its own, in the dtype of ``x``; zeros past the last group.

    weight: those of all groups, one below the other, ``[E * O, I]``. group_sizes: how many rows each group has.
    """
    groups = group_sizes.shape[0]
    if isinstance(weight, FixedOrder):
        weight = weight.weight  # what grouped_matmul promises of all products
    if isinstance(weight, jax.Array):
        return grouped_matmul(x, weight.reshape(groups, -1, x.shape[1]), group_sizes)
    if isinstance(weight, QuantizedRows):
        return quantized_grouped_matmul(x, weight.blocks, weight.kind, group_sizes, weight.scale)
    raise TypeError(f"grouped_linear() has no implementation for weights of type {type(weight).__name__}")


def head_linear(x: Float[Array, "T N I"], weight: Float[Array, "N O I"]) -> Float[Array, "T N O"]:
    """``x[:, head] @ weight[head].T`` for each head, in the dtype of ``x``.

    On CPUs head by head: in XLA's batched product the bits of a row depend on the number of rows.
    """
    if jax.default_backend() != "cpu":
        return jnp.einsum("tni,noi->tno", x, weight, preferred_element_type=jnp.float32).astype(x.dtype)
    heads: Array = jax.lax.map(lambda head: linear(*head), (x.swapaxes(0, 1), weight))
    return heads.swapaxes(0, 1)


def rows_at(weight: Any, index: Int[Array, " T"], dtype: DTypeLike) -> Float[Array, "T I"]:
    """Rows of a weight, plain or quantized in one way; an index beyond the ends takes the last or first."""
    if isinstance(weight, QuantizedRows):
        scale = None if weight.scale is None else weight.scale.at[index].get(mode="clip")
        return dequantize(weight.blocks.at[index].get(mode="clip"), weight.kind, scale, dtype)
    rows: Array = weight.at[index].get(mode="clip")
    return rows.astype(dtype)


def _quantized(x: Float[Array, "T I"], weight: QuantizedRows, out_dtype: DTypeLike) -> Float[Array, "T O"]:
    return quantized_matmul(x, weight.blocks, weight.kind, weight.scale, out_dtype)


def _in_parts(x: Float[Array, "T I"], weight: RowParts, out_dtype: DTypeLike) -> Float[Array, "T O"]:
    return jnp.concatenate([linear(x, part, out_dtype) for part in weight.parts], axis=1)


def _in_fixed_order(x: Float[Array, "T I"], weight: FixedOrder, out_dtype: DTypeLike) -> Float[Array, "T O"]:
    return matmul(x, weight.weight, out_dtype, deterministic=True)


register_linear(FixedOrder, _in_fixed_order)
register_linear(QuantizedRows, _quantized)
register_linear(RowParts, _in_parts)
