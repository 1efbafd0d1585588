"""Sums whose order of additions is fixed, so that a row's result never depends on how many rows there are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

LANES = 16


def row_sum(x: Float[Array, "*rows D"]) -> Float[Array, "*rows"]:
    """Sum over the last axis in one fixed order: 16 lanes each in sequence, then a tree over the lanes.

    ``jnp.sum`` leaves the order to the compiler, which on CPUs changes it with the number of rows.
    """
    padding = -x.shape[-1] % LANES
    if padding:
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])
    lanes = jax.lax.reduce(
        x.reshape(*x.shape[:-1], -1, LANES), jnp.zeros((), x.dtype), jax.lax.add, (x.ndim - 1,)
    )
    while lanes.shape[-1] > 1:
        half = lanes.shape[-1] // 2
        lanes = lanes[..., :half] + lanes[..., half:]
    return lanes[..., 0]
