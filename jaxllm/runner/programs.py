"""The pure functions of a step, compiled once per bucket, each compilation counted.

``forward`` runs the model over a step's tokens; ``sample`` turns hidden rows into tokens; the others are small:
table deltas, block copies, one slot's sampling state, log-probabilities of prompt tokens.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxllm.config import EngineConfig
from jaxllm.kv_cache import block_table, pool
from jaxllm.kv_cache.block_table import BlockTable
from jaxllm.kv_cache.pool import KVPool
from jaxllm.models.model import Model, Params
from jaxllm.runner.batch import StepBatch
from jaxllm.runner.buckets import bucket_for, buckets
from jaxllm.sampling import (
    SampleOutput,
    SamplingRows,
    SamplingState,
    TokenLogprobs,
    Variant,
    mask_padded_vocab,
    sample,
    set_slot,
    token_logprobs,
)
from pallas_kernels import paged_attention_metadata, positions_and_rows

logger = logging.getLogger("jaxllm")

TABLE_CHANGES = 128
"""Table entries changed per call of ``update_table``."""
BLOCK_COPIES = 16
"""Blocks copied per call of ``copy_blocks``."""
PROMPT_LOGPROB_ROWS = 64
"""Prompt tokens whose logits are in memory at once."""
SLOW_COMPILE_SECONDS = 2.0


@dataclasses.dataclass
class Programs:
    """Every executable that an engine of these sizes can need.

    traces: how often each program's Python body ran, by name; constant once its bucket has been used.
    """

    model: Model
    config: EngineConfig
    traces: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __post_init__(self) -> None:
        self.token_buckets = buckets(self.config.max_num_batched_tokens)
        self.row_buckets = buckets(self.config.max_num_seqs)
        self._executables: dict[Hashable, Any] = {}
        self._lock = threading.Lock()
        self._key_locks: dict[Hashable, threading.Lock] = collections.defaultdict(threading.Lock)

    @property
    def max_executables(self) -> int:
        """The bucket formula: the most executables there can be."""
        return 2 * len(self.token_buckets) + len(Variant) * len(self.row_buckets) + 3

    @property
    def num_executables(self) -> int:
        """Executables compiled so far."""
        return len(self._executables)

    def formula(self) -> str:
        """``max_executables`` in words, as ``jaxllm info`` prints it."""
        tokens, rows = len(self.token_buckets), len(self.row_buckets)
        return (f"at most {self.max_executables} = 2 programs x {tokens} token buckets {self.token_buckets} + "
                f"{len(Variant)} samplers x {rows} row buckets {self.row_buckets} + 3")

    # The steps, as the runner calls them.

    def forward(self, params: Params, cache: KVPool, table: BlockTable, batch: StepBatch
                ) -> tuple[KVPool, Array, Array]:
        """Donates ``cache``. Returns it, the hidden rows to sample from ``[R, D]`` and all hidden rows ``[T, D]``."""
        key = ("forward", batch.token_ids.shape[0])
        return self._run(key, self._forward, (1,), params, cache, table, batch)

    def sample(self, variant: Variant, head: Params, state: SamplingState | None, hidden: Array, rows: SamplingRows
               ) -> tuple[SamplingState | None, SampleOutput]:
        """Donates ``state``. The first rows of ``hidden`` are sampled, as many as the bucket of ``rows`` holds."""
        key = ("sample", rows.num_rows, variant)
        return self._run(key, functools.partial(self._sample, variant), (1,), head, state, hidden, rows)

    def prompt_logprobs(self, head: Params, hidden: Array, first: int, targets: Any) -> TokenLogprobs:
        """Log-probabilities of ``targets`` under the hidden rows from ``first`` on."""
        key = ("prompt_logprobs", hidden.shape[0])
        return self._run(key, self._prompt_logprobs, (), head, hidden, np.int32(first), targets)

    def update_table(self, table: BlockTable, changes: Any) -> BlockTable:
        """Donates ``table``."""
        return self._run(("update_table",), self._update_table, (0,), table, changes)

    def copy_blocks(self, cache: KVPool, pairs: Any) -> KVPool:
        """Donates ``cache``."""
        return self._run(("copy_blocks",), self._copy_blocks, (0,), cache, pairs)

    def set_sampling_slot(self, state: SamplingState, slot: Any, row: tuple[Any, ...]) -> SamplingState:
        """Donates ``state``."""
        return self._run(("set_sampling_slot",), self._set_slot, (0,), state, slot, row)

    # What they compute, as pure functions.

    def _forward(self, params: Params, cache: KVPool, table: BlockTable, batch: StepBatch
                 ) -> tuple[KVPool, Float[Array, "R D"], Float[Array, "T D"]]:
        size = self.config.block_size
        tokens = batch.token_ids.shape[0]
        positions, rows, valid = positions_and_rows(batch.query_start, batch.lengths, tokens)
        slots = block_table.slots(table, 0, rows, positions, valid, size)
        attention = paged_attention_metadata(
            table.blocks[0], batch.query_start, batch.lengths, num_tokens=tokens, block_size=size)
        hidden, cache = self.model.forward(params, batch.token_ids, positions, slots, attention, cache)
        return cache, hidden[batch.sample_rows], hidden

    def _sample(self, variant: Variant, head: Params, state: SamplingState | None, hidden: Float[Array, "R D"],
                rows: SamplingRows) -> tuple[SamplingState | None, SampleOutput]:
        logits = self._logits(head, _at_least(hidden, rows.num_rows)[:rows.num_rows])
        return sample(logits, rows, state, variant, max_logprobs=self.config.max_logprobs)

    def _prompt_logprobs(self, head: Params, hidden: Float[Array, "T D"], first: Int[Array, ""],
                         targets: Int[Array, " C"]) -> TokenLogprobs:
        rows = jax.lax.dynamic_slice_in_dim(hidden, first, targets.shape[0])
        return token_logprobs(self._logits(head, rows), targets, self.config.max_logprobs)

    def _logits(self, head: Params, rows: Float[Array, "B D"]) -> Float[Array, "B V"]:
        return mask_padded_vocab(self.model.logits(head, rows), self.config.vocab_size)

    @staticmethod
    def _update_table(table: BlockTable, changes: Int[Array, "C 4"]) -> BlockTable:
        return block_table.update(table, changes)

    @staticmethod
    def _copy_blocks(cache: KVPool, pairs: Int[Array, "C 2"]) -> KVPool:
        return pool.copy_blocks(cache, pairs[:, 0], pairs[:, 1])

    @staticmethod
    def _set_slot(state: SamplingState, slot: Int[Array, ""], row: tuple[Array, ...]) -> SamplingState:
        return set_slot(state, slot, *row)

    # Compilation.

    def compile_forward(self, tokens: int, *arguments: Any) -> None:
        """Compile ``forward`` for a token bucket from abstract arguments, so that it is there when needed."""
        self._executable(("forward", tokens), self._forward, (1,), arguments)

    def compile_sample(self, variant: Variant, rows: int, *arguments: Any) -> None:
        """The same for ``sample``."""
        self._executable(("sample", rows, variant), functools.partial(self._sample, variant), (1,), arguments)

    def _run(self, key: Hashable, function: Callable[..., Any], donated: tuple[int, ...], *arguments: Any) -> Any:
        executable = self._executables.get(key)
        if executable is None:
            executable = self._executable(key, function, donated, arguments)
        return executable(*arguments)

    def _executable(self, key: Any, function: Callable[..., Any], donated: tuple[int, ...],
                    arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            key_lock = self._key_locks[key]
        with key_lock:
            if key not in self._executables:
                started = time.perf_counter()
                counted = self._counted(str(key[0]), function)
                lowered = jax.jit(counted, donate_argnums=donated, keep_unused=True).lower(*arguments)
                self._executables[key] = lowered.compile()
                seconds = time.perf_counter() - started
                if seconds > SLOW_COMPILE_SECONDS:
                    logger.info("compiled %s in %.1f s", " ".join(map(str, key)), seconds)
            return self._executables[key]

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*arguments: Any) -> Any:
            self.traces[name] += 1
            return function(*arguments)

        counted.__name__ = counted.__qualname__ = f"jaxllm_{name}"
        return counted


def _at_least(hidden: Float[Array, "R D"], rows: int) -> Float[Array, "B D"]:
    missing = rows - hidden.shape[0]
    return hidden if missing <= 0 else jnp.pad(hidden, ((0, missing), (0, 0)))


def prompt_logprob_rows(token_bucket: int) -> int:
    """How many prompt tokens one call of ``prompt_logprobs`` takes at this bucket."""
    return min(token_bucket, PROMPT_LOGPROB_ROWS)


__all__ = ["BLOCK_COPIES", "PROMPT_LOGPROB_ROWS", "TABLE_CHANGES", "Programs", "bucket_for", "prompt_logprob_rows"]
