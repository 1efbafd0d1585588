"""Grouped products in Mosaic GPU at the shapes of models, for the tests that compile them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from pallas_kernels import aot, grouped_matmul

MODELS = {
    "Qwen3-30B-A3B, decode": (32 * 8, 128, 1536, 2048),
    "Qwen3-30B-A3B, prefill": (4096 * 8, 128, 2048, 768),
    "gpt-oss-120b, decode": (32 * 4, 128, 5760, 2880),
    "gpt-oss-120b, prefill": (8192 * 4, 128, 2880, 2880),
    "a row": (1, 8, 1024, 512),
    "sums in float32": (4096, 8, 1024, 512),
}
"""T, E, O, I: rows of all experts together, experts, outputs and inputs of one."""


def cases(gpu: str) -> Iterator[aot.Case]:
    for name, (num_rows, num_groups, outputs, inputs) in MODELS.items():
        out_dtype = jnp.float32 if "float32" in name else jnp.bfloat16
        function = functools.partial(grouped_matmul, out_dtype=out_dtype, implementation="pallas")
        yield aot.Case(name, function, (
            jax.ShapeDtypeStruct((num_rows, inputs), jnp.bfloat16),
            jax.ShapeDtypeStruct((num_groups, outputs, inputs), jnp.bfloat16),
            jax.ShapeDtypeStruct((num_groups,), jnp.int32)))
