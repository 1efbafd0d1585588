"""What a machine can do at most, as far as simple programs of JAX reach it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxllm.models.linear import linear

BUFFER_BYTES = 256 << 20
"""As much as the weights of a small model, and more than a core's own caches hold."""
COLUMNS = 1 << 20
MATRIX = 2048
SECONDS = 0.5
"""How long each kernel is tried."""


@dataclasses.dataclass(frozen=True)
class MachineSpeed:
    """Bytes per second that are read from memory, and operations per second of matrix products in a dtype."""

    bytes_per_second: float
    flops_per_second: float


def measure_machine(dtype: Any) -> MachineSpeed:
    """Measure this machine for about two seconds; the best of several kernels and runs counts."""
    return MachineSpeed(_bandwidth(BUFFER_BYTES), _flops(dtype, MATRIX))


def _bandwidth(nbytes: int) -> float:
    """Of reading a buffer, as decoding reads weights and keys: writing is not counted, which has lines read as well."""
    numbers = jnp.ones((nbytes // 4 // COLUMNS, COLUMNS), jnp.int32)

    @jax.jit
    def read(values: jax.Array) -> jax.Array:
        return jax.lax.reduce(values, jnp.int32(0), jax.lax.bitwise_or, (0,))

    return nbytes / _shortest(lambda: read(numbers))


def _flops(dtype: Any, size: int) -> float:
    """Of a large square product, by the door that the model uses and by XLA's own."""
    matrix = jnp.full((size, size), 0.5, dtype)

    @jax.jit
    def own(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum("ti,oi->to", left, right, preferred_element_type=jnp.float32).astype(left.dtype)

    model = jax.jit(linear)
    return 2 * size**3 / min(_shortest(lambda: own(matrix, matrix)), _shortest(lambda: model(matrix, matrix)))


def _shortest(function: Callable[[], jax.Array], seconds: float = SECONDS) -> float:
    """The shortest time of a call, of those made within ``seconds`` after one that compiles."""
    jax.block_until_ready(function())
    end, best = time.perf_counter() + seconds, float("inf")
    while True:
        started = time.perf_counter()
        jax.block_until_ready(function())
        now = time.perf_counter()
        best = min(best, now - started)
        if now >= end:
            return best
