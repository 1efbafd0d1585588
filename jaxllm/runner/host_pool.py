"""``HostPool``: the storage of swapped-out blocks in host memory, laid out like the device's pool."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxllm.kv_cache import KVSpec, abstract_pool

HostBlocks = list[dict[str, Any]]
"""Per pool position, the entries of ``KVSpec`` by name, each ``[N blocks, K heads, S slots, H size]``, in numpy."""


class HostPool:
    """A fixed number of blocks in host memory, which is taken when the first of them is written.

    Which block holds what is decided elsewhere (``engine.swap``).
    """

    def __init__(self, spec: KVSpec, num_blocks: int, block_size: int) -> None:
        self._shapes = abstract_pool(spec, num_blocks, block_size)
        self._arrays: HostBlocks | None = None

    @property
    def allocated(self) -> bool:
        """Whether anything was ever written."""
        return self._arrays is not None

    def write(self, blocks: np.ndarray, values: HostBlocks) -> None:
        """Set blocks to the first of the ``values``, which may hold more."""
        if self._arrays is None:
            # Not zeroed: the operating system gives pages when they are written.
            self._arrays = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), self._shapes)
        for array, value in zip(jax.tree.leaves(self._arrays), jax.tree.leaves(values), strict=True):
            array[blocks] = value[: len(blocks)]

    def read(self, blocks: np.ndarray, count: int) -> HostBlocks:
        """Copies of blocks that were written before, followed by zeros up to ``count``."""

        def padded(array: np.ndarray) -> np.ndarray:
            values = np.zeros((count, *array.shape[1:]), array.dtype)
            values[: len(blocks)] = array[blocks]
            return values

        return jax.tree.map(padded, self._arrays)
