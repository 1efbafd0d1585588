"""Products in Triton at the shapes of models, for the tests that compile them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import aot, grouped_matmul, matmul

TOKENS = 2048
OLDEST_WITH_FLOAT8 = (8, 9)

WEIGHTS = {
    "llama-3-8b, qkv": (6144, 4096),
    "llama-3-8b, down": (4096, 14_336),
    "qwen3-30b-a3b, qkv": (5120, 2048),
    "gemma-3-27b, gate and up": (43_008, 5376),
    "gpt-oss-120b, qkv": (5120, 2880),
}
"""O, I."""

EXPERTS = {
    "qwen3-30b-a3b, gate and up": (128, 8, 1536, 2048),
    "qwen3-30b-a3b, down": (128, 8, 2048, 768),
    "gpt-oss-120b, gate and up": (128, 4, 5760, 2880),
    "gpt-oss-120b, down": (128, 4, 2880, 2880),
}
"""E, experts of a token, O, I."""


def array(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def multiply_experts(x, weights, group_sizes, scales=None):
    return grouped_matmul(x, weights, group_sizes, scales, implementation="triton")


def cases(gpu: str) -> Iterator[aot.Case]:
    for name, (outputs, inputs) in WEIGHTS.items():
        yield aot.Case(f"matmul {name}", functools.partial(matmul, implementation="triton"),
                       (array(TOKENS, inputs), array(outputs, inputs)))
    yield aot.Case("matmul of one row, qwen3-30b-a3b, qkv", functools.partial(matmul, implementation="triton"),
                   (array(1, 2048), array(5120, 2048)))
    for name, (groups, chosen, outputs, inputs) in EXPERTS.items():
        x, sizes = array(TOKENS * chosen, inputs), array(groups, dtype=jnp.int32)
        yield aot.Case(f"experts {name}", multiply_experts, (x, array(groups, outputs, inputs), sizes))
        if aot.GPUS[gpu].capability >= OLDEST_WITH_FLOAT8:
            yield aot.Case(
                f"experts in float8 {name}", multiply_experts,
                (x, array(groups, outputs, inputs, dtype=jnp.float8_e4m3fn), sizes,
                 array(groups, outputs, dtype=jnp.float32)))
