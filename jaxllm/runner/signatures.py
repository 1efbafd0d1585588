"""The arguments of every program, known beforehand: what lets them be compiled before the first step."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxllm.kv_cache import abstract_pool, block_table
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
    """The arguments for a model, a cache and an engine's sizes."""

    functions: StepFunctions

    def of(self, key: Key) -> tuple[Any, ...]:
        """The arguments of a program, as shapes and dtypes."""
        if key.program in ("allocate_pool", "empty_state"):
            return ()
        model, spec, config = self.functions.model, self.functions.spec, self.functions.config
        rows = config.max_num_seqs
        width, vocab = model.config.hidden_size, model.config.vocab_size
        params = model.abstract_params
        outer, head = model.outer_params(params), model.head_params(params)
        cache = abstract_pool(spec, config.num_blocks, config.block_size)
        table = jax.eval_shape(lambda: block_table.empty(len(spec.groups), rows, config.blocks_per_sequence))
        state = jax.eval_shape(self.functions.empty_state)
        words = mask_words(vocab)
        sampled = buckets(rows)[-1]
        batch = StepBatch(_ints(StepBatch.size(key.bucket, rows, sampled)), key.bucket, rows)
        if key.program == "begin":
            return outer, table, _ints(rows), batch
        if key.program in ("layers", "end"):
            x, step, sample_rows = jax.eval_shape(self.functions.begin, outer, table, _ints(rows), batch)
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
            return cache, _ints(SWAP_BLOCKS), abstract_pool(spec, SWAP_BLOCKS, config.block_size)
        line = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), state)
        return state, _ints(), SlotRow(line.counts, line.flags, line.bias, line.history, line.arguments)


def _no_rows(num_slots: int, bucket: int) -> SamplingRows:
    empty = np.zeros(0, np.int32)
    return RowTable(num_slots).rows(empty, empty, bucket)


def _ints(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, np.int32)
