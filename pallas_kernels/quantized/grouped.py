"""The contract of products by groups of rows with quantized weights."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Int32, UInt8

from pallas_kernels import registry
from pallas_kernels.quantized.api import check_product


def quantized_grouped_matmul(
    x: Float[Array, "T I"],
    weight: UInt8[Array, "E*O bytes"],
    kind: str,
    group_sizes: Int32[Array, " E"],
    scale: Float[Array, " E*O"] | None = None,
    out_dtype: DTypeLike | None = None,
    implementation: str | None = None,
) -> Float[Array, "T O"]:
    """`grouped_matmul` with the rows that are stored in ``weight``, those of one group below those of another.

    The first ``group_sizes[0]`` rows of x are group 0's, and so on; rows past the last group are zero in the result. A
    row has the bits that `quantized_matmul` gives it with its group's weight, whatever the groups' sizes. The other
    arguments are `quantized_matmul`'s.
    """
    check_product(x, weight, kind, scale)
    if group_sizes.ndim != 1 or group_sizes.dtype != jnp.int32:
        raise ValueError(f"group_sizes must be int32 [E], got {group_sizes.dtype} {group_sizes.shape}")
    if group_sizes.shape[0] == 0 or weight.shape[0] % group_sizes.shape[0]:
        raise ValueError(f"weight must be [E * O, bytes] with E = {group_sizes.shape[0]}, got shape {weight.shape}")
    out = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    operands = {"x": x, "weight": weight, "kind": kind, "group_sizes": group_sizes, "scale": scale, "out_dtype": out}
    return registry.choose("quantized_grouped_matmul", implementation, operands=operands).run(**operands)
