"""Gated products in float64, on the host. For tests only."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jaxtyping import Array, Float

from pallas_kernels.gated_matmul.activations import Activation


def gated_matmul_oracle(x: Float[Array, "T I"], weight: Float[Array, "2F I"], activation: Activation
                        ) -> Float[Array, "T F"]:
    """Exact but for the roundings of the contract; under ``jit`` through a callback."""
    like = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0] // 2), x.dtype)
    return jax.pure_callback(functools.partial(_gated, activation), like, x, weight)


def _gated(activation: Activation, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    x, weight = np.asarray(x), np.asarray(weight)
    return gate_oracle((x.astype(np.float64) @ weight.astype(np.float64).T).astype(x.dtype), activation)


def gate_oracle(product: np.ndarray, activation: Activation) -> np.ndarray:
    """``activation(gate) * up`` of the halves of a product, rounded to its dtype."""
    gate, up = np.split(product.astype(np.float64), 2, axis=-1)
    with np.errstate(over="ignore"):
        if activation == "silu":
            opened = gate / (1 + np.exp(-gate))
        else:
            opened = gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        return (opened * up).astype(product.dtype)
