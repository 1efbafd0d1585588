"""``Stage``: the layers that one set of devices computes, with the device state that they need."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from jaxllm.engine.plan import StepPlan
from jaxllm.kv_cache import block_table
from jaxllm.runner.batch import padded_lines
from jaxllm.runner.host_pool import HostPool, SharedHostPool
from jaxllm.runner.keys import BLOCK_COPIES, SWAP_BLOCKS, TABLE_CHANGES
from jaxllm.runner.programs import Programs


class Stage:
    """Cache and block table of some layers, or of all, and in host memory the blocks that were swapped out of it.

    Everything on the devices is replaced, never mutated.
    """

    def __init__(self, programs: Programs) -> None:
        self.programs, self.partition = programs, programs.partition
        self.here = self.partition.here
        self.spec, self.config = programs.spec, programs.config
        # Of one process's devices it is one array; jit gives each its part.
        sizes = self.config.num_swap_blocks, self.config.block_size
        self._host_pool = SharedHostPool(self.spec, *sizes) if self.partition.is_shared else HostPool(
            self.partition.global_kv(self.spec), *sizes)

    def reset(self) -> None:
        """Fresh device state, where any of the devices is this process's: an empty cache, an empty table."""
        if not self.here:
            self.cache = []
            return
        self.cache = self.programs.allocate_pool()
        self.table = block_table.empty(
            len(self.spec.groups), self.config.max_num_seqs, self.config.blocks_per_sequence, self.partition.put_small)

    def drop_cache(self) -> None:
        """Give back the memory of the cache, until ``reset``."""
        self.cache = []

    def move_blocks(self, plan: StepPlan) -> None:
        """What a step does to the cache and its table before it computes anything."""
        if not self.here:
            return
        self._swap(plan)
        for pairs in _chunks(plan.block_copies, BLOCK_COPIES, 0):
            self.cache = self.programs.copy_blocks(self.cache, pairs)
        for changes in _chunks(plan.table_updates, TABLE_CHANGES, -1):
            self.table = self.programs.update_table(self.table, changes)

    def _swap(self, plan: StepPlan) -> None:
        """Copy blocks to host memory, waiting for them, then others back."""
        for first in range(0, len(plan.swap_out), SWAP_BLOCKS):
            device, host = plan.swap_out[first:first + SWAP_BLOCKS].T
            values = self.programs.read_blocks(self.cache, _padded(device))
            self._host_pool.write(host, values if self.partition.is_shared else jax.device_get(values))
        for first in range(0, len(plan.swap_in), SWAP_BLOCKS):
            host, device = plan.swap_in[first:first + SWAP_BLOCKS].T
            self.cache = self.programs.write_blocks(
                self.cache, _padded(device), self._host_pool.read(host, SWAP_BLOCKS))


def _padded(blocks: np.ndarray) -> np.ndarray:
    return np.pad(blocks, (0, SWAP_BLOCKS - len(blocks)))


def _chunks(lines: np.ndarray, size: int, fill: int) -> Iterator[np.ndarray]:
    for first in range(0, len(lines), size):
        yield padded_lines(lines[first:first + size], size, fill)
