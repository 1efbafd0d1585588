"""The KV pool: level 2 of the page table, the storage. A pytree of arrays, donated through every step."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import Array, Int

from jaxllm.kv_cache.pages import unfilled
from jaxllm.kv_cache.spec import KVSpec
from pallas_kernels import Float8Pool, Int8Pool

KVPool = list[dict[str, Array | Int8Pool | Float8Pool]]
"""Per pool position, the entries of ``KVSpec`` by name, each head-major ``[P blocks, K heads, S slots, H size]``."""


def abstract_pool(spec: KVSpec, num_blocks: int, block_size: int) -> list[dict[str, Any]]:
    """Shapes and dtypes of a pool."""
    return [
        {name: entry.abstract(num_blocks, block_size) for name, entry in spec.entries.items()}
        for _ in range(spec.arrays_per_group)
    ]


def unfilled_pool(spec: KVSpec, num_blocks: int, block_size: int) -> KVPool:
    """A pool, in a function that is compiled, for ``pages.cleared``: it then takes memory as its blocks are first
    written.

    Block 0 is the null block: padding is written there and nothing reads it.
    """
    pool: KVPool = unfilled(abstract_pool(spec, num_blocks, block_size))
    return pool


def read_blocks(pool: KVPool, blocks: Int[Array, " N"]) -> KVPool:
    """The contents of whole blocks, ``[N, K, S, H]`` each, and their scales. 0 is padding."""
    return jax.tree.map(lambda array: array[blocks], pool)


def write_blocks(pool: KVPool, blocks: Int[Array, " N"], values: KVPool) -> KVPool:
    """Replace the contents of whole blocks by ``values``, ``[N, K, S, H]`` each. 0 is padding."""
    return jax.tree.map(lambda array, value: array.at[blocks].set(value), pool, values)


def copy_blocks(pool: KVPool, pairs: Int[Array, "C 2"]) -> KVPool:
    """Copy whole blocks within the pool, (source, target) each, for copy-on-write. (0, 0) is padding."""
    source, target = pairs[:, 0], pairs[:, 1]
    return jax.tree.map(lambda array: array.at[target].set(array[source]), pool)
