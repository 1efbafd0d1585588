"""The gates of gated products (Shazeer 2020, GLU Variants Improve Transformer), in plain XLA."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Activation = Literal["silu", "gelu_tanh"]
"""``g * sigmoid(g)``, of SwiGLU; ``g * sigmoid(2 * sqrt(2 / pi) * (g + 0.044715 * g**3))``, of GeGLU: GELU by its
approximation with tanh (Hendrycks and Gimpel 2016)."""

ACTIVATIONS: Mapping[str, int] = {name: number for number, name in enumerate(get_args(Activation))}
"""Their names, numbered as the native library numbers them."""

_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu, "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


def check_activation(activation: str) -> None:
    """ValueError unless it is known."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is not known; there are {', '.join(ACTIVATIONS)}")


def gate(product: Float[Array, "T 2F"], activation: Activation) -> Float[Array, "T F"]:
    """``activation(gate) * up`` of the halves of a product, in float32, rounded once."""
    gates, up = jnp.split(product, 2, axis=-1)
    opened = _FUNCTIONS[activation](gates.astype(jnp.float32))
    return (opened * up.astype(jnp.float32)).astype(product.dtype)
