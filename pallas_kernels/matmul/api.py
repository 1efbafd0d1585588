"""The contract of a product with a weight: float32 sums, rows that do not depend on each other."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from pallas_kernels import registry

_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)


def matmul(
    x: Float[Array, "T I"],
    weight: Float[Array, "O I"],
    out_dtype: DTypeLike | None = None,
    implementation: str | None = None,
    *,
    deterministic: bool = False,
) -> Float[Array, "T O"]:
    """``x @ weight.T`` with products and sums in float32, rounded once to ``out_dtype`` (default: the dtype of ``x``).

    A row's bits do not depend on the other rows, their number or the number of threads. (``xla`` on CPUs: from 2 rows
    on in bfloat16. On GPUs ``xla`` promises it not at all: libraries choose by the number of rows how they add up.) The
    order of the sums is the implementation's own. ``cpu`` flushes subnormal numbers to zero.

    deterministic: choose on GPUs too, before any setting of the environment, an implementation that keeps this promise,
        ``triton``, at some cost in speed; ValueError where it cannot be had.
    """
    if x.ndim != 2:
        raise ValueError(f"x must be [T, I], got shape {x.shape}")
    if weight.ndim != 2 or weight.shape[1] != x.shape[1]:
        raise ValueError(f"weight must be [O, I] with I = {x.shape[1]}, got shape {weight.shape}")
    if x.dtype not in _DTYPES or weight.dtype != x.dtype:
        raise ValueError(f"x and weight must both be float32, bfloat16 or float16, got {x.dtype} and {weight.dtype}")
    out = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    operands = {"x": x, "weight": weight, "out_dtype": out}
    if deterministic and implementation is None and registry.platform_of_trace() == "gpu":
        implementation = "triton"
    return registry.choose("matmul", implementation, operands=operands).run(**operands)
