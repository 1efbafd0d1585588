"""The contract of a product in which every group of rows has its own weight."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float, Float32, Int32

from pallas_kernels import registry

_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def grouped_matmul(
    x: Float[Array, "T I"],
    weights: Float[Array, "E O I"],
    group_sizes: Int32[Array, " E"],
    scales: Float32[Array, "E O"] | None = None,
    out_dtype: DTypeLike | None = None,
    implementation: str | None = None,
) -> Float[Array, "T O"]:
    """``x[rows of group e] @ weights[e].T``, products and sums in float32, rounded once to ``out_dtype``.

    The first ``group_sizes[0]`` rows of x are group 0's, and so on: tokens sorted by expert. Groups can be empty; rows
    past the last group are zero in the result. Weights have the dtype of x, or are float8_e4m3fn, with ``scales`` for
    the outputs of each group or without; x is not quantized. A row's bits do not depend on the other rows, their number
    or the groups' sizes.

    Args:
        out_dtype: the dtype of x if not given.
        implementation: a name from ``registry.implementations("grouped_matmul")``.
    """
    if x.ndim != 2 or x.dtype not in _DTYPES:
        raise ValueError(f"x must be float32, bfloat16 or float16 [T, I], got {x.dtype} {x.shape}")
    if weights.ndim != 3 or weights.shape[2] != x.shape[1] or weights.dtype not in (x.dtype, jnp.float8_e4m3fn):
        raise ValueError(f"weights must be {x.dtype} or float8_e4m3fn [E, O, I] with I = {x.shape[1]}, got "
                         f"{weights.dtype} {weights.shape}")
    if group_sizes.shape != weights.shape[:1] or group_sizes.dtype != jnp.int32:
        raise ValueError(f"group_sizes must be int32 [E] = [{weights.shape[0]}], got {group_sizes.dtype} "
                         f"{group_sizes.shape}")
    if scales is not None and (scales.shape != weights.shape[:2] or scales.dtype != jnp.float32):
        raise ValueError(f"scales must be float32 [E, O] = {weights.shape[:2]}, got {scales.dtype} {scales.shape}")
    out = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    operands = {"x": x, "weights": weights, "group_sizes": group_sizes, "scales": scales, "out_dtype": out}
    return registry.choose("grouped_matmul", implementation, operands=operands).run(**operands)
