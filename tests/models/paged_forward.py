"""Logits of chosen tokens through the compiled programs and the paged cache, with the steps spelled out."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from jaxllm.engine.build import layers_per_program
from jaxllm.engine.sizes import EngineSizes, choose_config
from jaxllm.kv_cache import block_table
from jaxllm.runner.batch import StepBatch
from jaxllm.runner.buckets import bucket_for
from jaxllm.runner.programs import Programs
from jaxllm.runner.weights import Weights


class PagedForward:
    """A model with an empty cache for some rows, each of which has blocks of its own, in no particular order.

    cache: the dtype of what is cached. buckets: the numbers of tokens that steps are padded to, some of the model's
        own, where fewer programs will do.
    """

    def __init__(self, model, params, *, rows, length, tokens_per_step, block_size=8, buckets=None, cache="auto"):
        sizes = EngineSizes(max_num_seqs=rows, max_model_len=length, max_num_batched_tokens=tokens_per_step,
                            block_size=block_size, kv_cache_dtype=cache)
        config, spec = choose_config(model, sizes)
        # Nothing is given back here, however short the windows.
        self._groups = len(spec.groups)
        self._config = dataclasses.replace(config, num_blocks=1 + self._groups * rows * config.blocks_per_sequence)
        self._programs = Programs(model, spec, self._config, layers_per_program())
        self._buckets = buckets or self._programs.token_buckets
        assert set(self._buckets) <= set(self._programs.token_buckets)
        self._model, self._weights, self._rows = model, Weights(self._programs.partition, params), rows
        self.reset()

    def reset(self):
        """Forget what is cached."""
        shape = self._groups, self._rows, self._config.blocks_per_sequence
        blocks = 1 + np.random.default_rng(0).permutation(math.prod(shape)).reshape(shape)
        self._table = block_table.BlockTable(blocks.astype(np.int32))
        self._cache = self._programs.allocate_pool()
        self._lengths = np.zeros(self._rows, np.int32)

    def step(self, tokens):
        """Append each row's tokens to it, all in one step; the logits [count, V] of each row's."""
        counts = [len(row) for row in tokens]
        total, rows = sum(counts), self._rows
        self._lengths += counts
        size = bucket_for(self._buckets, total)
        batch = StepBatch(np.zeros(StepBatch.size(size, rows, self._programs.row_buckets[-1]), np.int32), size, rows)
        batch.token_ids[:total] = np.concatenate([np.asarray(row, np.int32) for row in tokens])
        batch.fed[:] = -1
        batch.query_start[1:] = np.cumsum(counts)
        batch.lengths[:] = self._lengths
        self._cache, _, hidden = self._programs.forward(
            self._weights.outer, self._weights.layers, self._cache, self._table, np.zeros(rows, np.int32), batch)
        logits = np.asarray(self._model.logits(self._weights.head, hidden))[:total]
        return np.split(logits, np.cumsum(counts)[:-1])
