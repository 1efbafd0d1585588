"""The arguments of every program, known beforehand: what lets them be compiled before the first step, and says how
they lie on the devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jaxllm.kv_cache import abstract_pool, block_table
from jaxllm.parallel.partition import Partition
from jaxllm.runner.batch import StepBatch
from jaxllm.runner.buckets import buckets
from jaxllm.runner.functions import StepFunctions
from jaxllm.runner.keys import (
    BLOCK_COPIES,
    SWAP_BLOCKS,
    TABLE_CHANGES,
    VOCAB_LOGPROB_ROWS,
    Key,
    prompt_logprob_rows,
)
from jaxllm.sampling import RowTable, SamplingRows, SlotRow, Variant, mask_words


@dataclasses.dataclass(frozen=True)
class Signatures:
    """The arguments for a model, a cache and an engine's sizes, over the devices of ``partition``.

    first: whether the residual stream begins there.
    """

    functions: StepFunctions
    partition: Partition
    first: bool = True

    def of(self, key: Key) -> tuple[Any, ...]:
        """The arguments of a program, as shapes, dtypes and shardings: arrays over all devices."""
        everywhere = self.partition.replicated
        if everywhere is None:
            return self._of(key)
        return jax.tree.map(lambda like: like if getattr(like, "sharding", None) else jax.ShapeDtypeStruct(
            like.shape, like.dtype, sharding=everywhere), self._of(key))

    def over_devices(self, key: Key, function: Callable[..., Any]) -> Callable[..., Any]:
        """A program's function as one of arrays over all devices; ``function`` is of each device's own."""
        if self.partition.size == 1:
            return function
        specs = jax.tree.map(lambda like: like.sharding.spec, self.of(key))
        return jax.shard_map(function, mesh=self.partition.mesh, in_specs=specs, out_specs=self._results(key),
                             check_vma=False)

    def _results(self, key: Key) -> Any:
        """How a program's results lie."""
        pool, whole = self.partition.pool_spec(self.functions.spec), PartitionSpec()
        if key.program == "layers":
            return whole, pool
        return pool if key.program in ("fill", "allocate_pool", "copy_blocks", "read_blocks", "write_blocks") else whole

    def _of(self, key: Key) -> tuple[Any, ...]:
        if key.program in ("allocate_pool", "empty_state"):
            return ()
        model, spec, config = self.partition.whole, self.functions.spec, self.functions.config
        rows = config.max_num_seqs
        width, vocab = model.config.hidden_size, model.config.vocab_size
        params = self.partition.abstract_params
        outer, head = model.outer_params(params), model.head_params(params)
        cache = self._pool(config.num_blocks)
        table = block_table.abstract(len(spec.groups), rows, config.blocks_per_sequence)
        state = jax.eval_shape(self.functions.empty_state)
        words = mask_words(vocab)
        sampled = buckets(rows)[-1]
        batch = StepBatch(_ints(StepBatch.size(key.bucket, rows, sampled)), key.bucket, rows)
        if key.program == "begin":
            return outer, table, _ints(rows), batch
        if key.program == "resume":
            return table, batch
        if key.program in ("layers", "fill", "end"):
            begin = Key("begin" if self.first else "resume", key.bucket)
            function = self.functions.begin if self.first else self.functions.resume
            made = jax.eval_shape(self.over_devices(begin, function), *self.of(begin))
            made = jax.tree.map(lambda like: jax.ShapeDtypeStruct(like.shape, like.dtype), made)
            x, step, sample_rows = made if self.first else (
                jax.ShapeDtypeStruct((key.bucket, width), model.dtype), *made)
            if key.program == "end":
                return outer, x, sample_rows
            chunk = next(chunk for chunk in self.functions.chunks if chunk.kind == key.kind)
            layers = [jax.tree.leaves(params["layers"][layer])
                      for layer in range(chunk.layers.start, chunk.layers.stop)]
            return layers, x, step.select(chunk.groups), [cache[number] for number in chunk.arrays]
        if key.program == "sample":
            hidden = jax.ShapeDtypeStruct((sampled, width), model.dtype)
            variant = Variant(key.kind)  # type: ignore[arg-type]
            mask = jax.ShapeDtypeStruct((key.bucket, words), np.uint32) if variant == Variant.MASKED else None
            return (head, state if variant >= Variant.FULL else None, _ints(rows), hidden, _no_rows(rows, key.bucket),
                    mask)
        if key.program == "vocab_logprobs":
            hidden = jax.ShapeDtypeStruct((key.bucket, width), model.dtype)
            mask = jax.ShapeDtypeStruct((VOCAB_LOGPROB_ROWS, words), np.uint32)
            return head, state, hidden, _ints(VOCAB_LOGPROB_ROWS), _no_rows(rows, VOCAB_LOGPROB_ROWS), mask
        if key.program == "prompt_logprobs":
            hidden = jax.ShapeDtypeStruct((key.bucket, width), model.dtype)
            return head, hidden, _ints(), _ints(prompt_logprob_rows(key.bucket))
        if key.program == "update_table":
            return table, _ints(TABLE_CHANGES, 4)
        if key.program == "copy_blocks":
            return cache, _ints(BLOCK_COPIES, 2)
        if key.program == "read_blocks":
            return cache, _ints(SWAP_BLOCKS)
        if key.program == "write_blocks":
            return cache, _ints(SWAP_BLOCKS), self._pool(SWAP_BLOCKS)
        line = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), state)
        return state, _ints(), SlotRow(line.counts, line.flags, line.bias, line.history, line.arguments)

    def _pool(self, blocks: int) -> Any:
        """So many blocks of the cache of all devices."""
        partition, config = self.partition, self.functions.config
        pool = abstract_pool(partition.global_kv(self.functions.spec), blocks, config.block_size)
        if partition.size == 1:
            return pool
        assert partition.mesh is not None
        sharding = NamedSharding(partition.mesh, partition.pool_spec(self.functions.spec))
        return jax.tree.map(lambda like: jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=sharding), pool)


def _no_rows(num_slots: int, bucket: int) -> SamplingRows:
    empty = np.zeros(0, np.int32)
    return RowTable(num_slots).rows(empty, empty, bucket)


def _ints(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, np.int32)
