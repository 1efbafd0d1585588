"""The contract of root-mean-square normalization."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import registry

_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def rms_norm(
    x: Float[Array, "*rows D"],
    weight: Float[Array, "*heads D"],
    epsilon: float,
    offset: float = 0.0,
    implementation: str | None = None,
) -> Float[Array, "*rows D"]:
    """``x / sqrt(mean(x**2) + epsilon) * (weight + offset)`` over the last axis, in x's dtype.

    Root-mean-square normalization (Zhang and Sennrich 2019), with weights that are stored less an offset in Gemma's
    checkpoints. All of it is in float32, rounded once. weight: of all rows, ``[D]``, or ``[heads, D]`` for an x of
    ``[..., heads, D]``. A row's bits do not depend on the other rows, their number or the number of threads. Raises
    ValueError for other shapes or dtypes.
    """
    if x.ndim < 2 or x.shape[-1] < 1:
        raise ValueError(f"x must be [..., D] with D >= 1 and at least two dimensions, got shape {x.shape}")
    if weight.shape != x.shape[-weight.ndim:] or weight.ndim not in (1, 2):
        raise ValueError(f"weight must be [D] or [heads, D], the last dimensions of x, {x.shape}; got {weight.shape}")
    if x.dtype not in _DTYPES or weight.dtype not in _DTYPES:
        raise ValueError(f"x and weight must be float32, bfloat16 or float16, got {x.dtype} and {weight.dtype}")
    operands = {"x": x, "weight": weight, "epsilon": float(epsilon), "offset": float(offset)}
    return registry.choose("rms_norm", implementation, operands=operands).run(**operands)
