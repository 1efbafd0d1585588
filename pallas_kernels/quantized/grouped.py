"""Products by groups of rows with quantized weights."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Float, Int32, UInt8

from pallas_kernels.grouped_matmul.tiles import multiply_tiles
from pallas_kernels.quantized.api import quantized_matmul


def quantized_grouped_matmul(
    x: Float[Array, "T I"],
    weights: UInt8[Array, "E*O bytes"],
    kind: str,
    group_sizes: Int32[Array, " E"],
    scales: Float[Array, " E*O"] | None = None,
    out_dtype: DTypeLike | None = None,
) -> Float[Array, "T O"]:
    """`grouped_matmul` with the rows that are stored in ``weights``, those of one group below those of another.

    A loop over tiles of a group's rows, each a `quantized_matmul` with its kinds of weights and its arithmetic, and by
    its implementation: a row has the bits that it has there, whatever the groups' sizes.
    """
    groups = group_sizes.shape[0]
    if weights.ndim != 2 or groups == 0 or weights.shape[0] % groups:
        raise ValueError(f"weights must be [E * O, bytes] with E = {groups}, got shape {weights.shape}")
    if group_sizes.dtype != jnp.int32:
        raise ValueError(f"group_sizes must be int32 [E], got {group_sizes.dtype}")
    if scales is not None and scales.shape != weights.shape[:1]:
        raise ValueError(f"scales must be float32 [{weights.shape[0]}], got shape {scales.shape}")
    outputs = weights.shape[0] // groups
    out = jnp.dtype(x.dtype if out_dtype is None else out_dtype)

    def product(rows: Float[Array, "R I"], group: Int32[Array, ""]) -> Float[Array, "R O"]:
        blocks = lax.dynamic_slice_in_dim(weights, group * outputs, outputs)
        scale = None if scales is None else lax.dynamic_slice_in_dim(scales, group * outputs, outputs)
        return quantized_matmul(rows, blocks, kind, scale, out)

    return multiply_tiles(x, group_sizes, outputs, out, product)
