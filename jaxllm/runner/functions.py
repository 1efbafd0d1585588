"""What the programs of a step compute: pure functions of arrays."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt32

from jaxllm.config import EngineConfig
from jaxllm.kv_cache import block_table, pool
from jaxllm.kv_cache.block_table import BlockTable
from jaxllm.kv_cache.pool import KVPool
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.linear import in_fixed_order
from jaxllm.models.model import Leaves, Model, Params
from jaxllm.models.step import StepContexts
from jaxllm.runner.batch import StepBatch
from jaxllm.runner.keys import Key, LayerChunk
from jaxllm.sampling import (
    MAX_LOGPROBS,
    LogitsProcessor,
    SampleOutput,
    SamplingRows,
    SamplingState,
    TokenLogprobs,
    Variant,
    VocabLogprobs,
    init_state,
    mask_padded_vocab,
    sample,
    sample_over_devices,
    set_slot,
    token_logprobs,
    token_logprobs_over_devices,
    vocab_logprobs,
)
from jaxllm.weights.rows import unstacked
from pallas_kernels import paged_attention_metadata, positions_and_rows


@dataclasses.dataclass(frozen=True)
class StepFunctions:
    """The functions for a model, a cache and an engine's sizes. chunks: the runs of layers of ``layer_chunks``.

    model, spec: what one device has of them. vocab_size: of the whole model.
    """

    model: Model
    vocab_size: int
    spec: KVSpec
    config: EngineConfig
    chunks: list[LayerChunk]

    def of(self, key: Key) -> tuple[Callable[..., Any], tuple[int, ...]]:
        """A program's function, and which of its arguments it may reuse the memory of."""
        kind: Any = key.kind
        functions: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
            "begin": (self.begin, ()),
            "resume": (self.resume, ()),
            "layers": (functools.partial(self.layers, kind), (1, 3)),
            "fill": (functools.partial(self.fill, kind), (3,)),
            "end": (self.end, ()),
            "sample": (functools.partial(self.sample, kind), (1,)),
            "prompt_logprobs": (self.prompt_logprobs, ()),
            "vocab_logprobs": (self.vocab_logprobs, ()),
            "allocate_pool": (functools.partial(
                pool.unfilled_pool, self.spec, self.config.num_blocks, self.config.block_size), ()),
            "empty_state": (self.empty_state, ()),
            "update_table": (block_table.update, (0,)),
            "copy_blocks": (pool.copy_blocks, (0,)),
            "read_blocks": (pool.read_blocks, ()),
            "write_blocks": (pool.write_blocks, (0,)),
            "set_sampling_slot": (set_slot, (0,)),
        }
        return functions[key.program]

    def begin(self, outer: Params, table: BlockTable, newest: Int[Array, " R"], batch: StepBatch
              ) -> tuple[Float[Array, "T D"], StepContexts, Int[Array, " B"]]:
        """The residual stream's beginning, what the layers share, and the rows to sample from."""
        step, sample_rows = self.resume(table, batch)
        # A slot that has no token (``NO_TOKEN``) fails when the host learns of it; until then any will do.
        token_ids = jnp.where(batch.fed < 0, batch.token_ids, jnp.maximum(newest[batch.fed], 0))
        # Padding is zeros, and stays so in most models: products with it need not be computed.
        x = jnp.where(step.valid[:, None], self.model.modules.embed(outer, token_ids, step.positions), 0)
        return x, step, sample_rows

    def resume(self, table: BlockTable, batch: StepBatch) -> tuple[StepContexts, Int[Array, " B"]]:
        """What the layers share, and the rows to sample from: all that a later stage of a pipeline computes anew."""
        size = self.config.block_size
        tokens = batch.num_tokens
        where = positions_and_rows(batch.query_start, batch.lengths, tokens)
        groups = range(len(self.spec.groups))
        slots = [block_table.slots(table, group, where.rows, where.positions, where.valid, size) for group in groups]
        attention: Any = paged_attention_metadata(table.blocks[0], batch.query_start, batch.lengths, tokens, size,
                                                  self.config.deterministic)
        step = self.model.modules.step_contexts(where.positions, where.valid,
                                                 dataclasses.replace(attention, tables=None), slots,
                                                 [table.blocks[group] for group in groups])
        return step, batch.sample_rows

    def layers(self, kind: int, params: Sequence[Leaves], x: Float[Array, "T D"], step: StepContexts, cache: KVPool
               ) -> tuple[Float[Array, "T D"], KVPool]:
        """A run of layers. params: each layer's leaves, in the order of its tree. step, cache: the run's groups and
        arrays."""
        chunk = next(chunk for chunk in self.chunks if chunk.kind == kind)
        nested = [in_fixed_order(unstacked(jax.tree.unflatten(tree, leaves)), self.config.deterministic)
                  for tree, leaves in zip(self.model.layer_trees[chunk.layers], params, strict=True)]
        return self.model.modules.run_layers(chunk.layers, nested, x, step, cache, chunk.places)

    def fill(self, kind: int, params: Sequence[Leaves], x: Float[Array, "T D"], step: StepContexts, cache: KVPool
             ) -> KVPool:
        """What the last run of layers writes, for steps in which nobody reads its result: the last layer's attention
        and MLP are then not computed."""
        return self.layers(kind, params, x, step, cache)[1]

    def end(self, outer: Params, x: Float[Array, "T D"], sample_rows: Int[Array, " B"]
            ) -> tuple[Float[Array, "B D"], Float[Array, "T D"]]:
        """The hidden rows to sample from, zeros where there are none, and all of them."""
        hidden = self.model.modules.finish(outer, x)
        return hidden.at[sample_rows].get(mode="fill", fill_value=0), hidden

    def sample(self, variant: Variant, head: Params, state: SamplingState | None, newest: Int[Array, " R"],
               hidden: Float[Array, "R D"], rows: SamplingRows, mask: UInt32[Array, "B W"] | None
               ) -> tuple[SamplingState | None, Int[Array, " R"], SampleOutput]:
        """A token for each row, which becomes its slot's newest."""
        hidden, shard = hidden[:rows.num_rows], self.model.config.shard
        if shard is not None and not (self._processors and variant > Variant.SAMPLED):
            state, output = sample_over_devices(self._own_logits(head, hidden), rows, state, variant, mask, shard)
        else:  # also where functions of the user take whole rows
            state, output = sample(self._logits(head, hidden), rows, state, variant, mask, processors=self._processors)
        return state, newest.at[rows.slot].set(output.token_ids, mode="drop"), output

    def empty_state(self) -> SamplingState:
        """An empty sampling state."""
        config = self.config
        return init_state(config.max_num_seqs, self.vocab_size, max_length=config.max_model_len,
                          num_processors=len(config.logits_processors))

    def vocab_logprobs(self, head: Params, state: SamplingState, hidden: Float[Array, "T D"],
                       index: Int[Array, " C"], rows: SamplingRows, mask: UInt32[Array, "C W"]) -> VocabLogprobs:
        """Log-probabilities of the whole vocabulary under some hidden rows."""
        return vocab_logprobs(self._logits(head, hidden[index]), rows, state, mask, self._processors)

    @property
    def _processors(self) -> tuple[LogitsProcessor, ...]:
        return tuple(processor for _, processor in self.config.logits_processors)

    def prompt_logprobs(self, head: Params, hidden: Float[Array, "T D"], first: Int[Array, ""],
                        targets: Int[Array, " C"]) -> TokenLogprobs:
        """Log-probabilities of the targets under the hidden rows from ``first`` on."""
        rows, shard = jax.lax.dynamic_slice_in_dim(hidden, first, targets.shape[0]), self.model.config.shard
        if shard is None:
            return token_logprobs(self._logits(head, rows), targets, MAX_LOGPROBS)
        k = min(MAX_LOGPROBS, self.vocab_size)
        return token_logprobs_over_devices(self._own_logits(head, rows), targets, k, shard)

    @jax.named_scope("head")
    def _logits(self, head: Params, rows: Float[Array, "B D"]) -> Float[Array, "B V"]:
        head = in_fixed_order(head, self.config.deterministic)
        logits, shard = self.model.logits(head, rows), self.model.config.shard
        if shard is not None:
            logits = shard.gather(logits, self.vocab_size)
        logits = mask_padded_vocab(logits, self.config.vocab_size)
        return jnp.where(self._unused, -jnp.inf, logits) if self.config.unused_token_ids else logits

    @jax.named_scope("head")
    def _own_logits(self, head: Params, rows: Float[Array, "B D"]) -> Float[Array, "B V/n"]:
        """Of the device's part of the vocabulary."""
        head = in_fixed_order(head, self.config.deterministic)
        logits, shard = self.model.logits(head, rows), self.model.config.shard
        assert shard is not None
        unused = np.ones(shard.size * logits.shape[-1], bool)
        unused[:self.config.vocab_size] = self._unused[:self.config.vocab_size]
        return jnp.where(shard.own(jnp.asarray(unused), logits.shape[-1]), -jnp.inf, logits)

    @property
    def _unused(self) -> np.ndarray:
        """Which ids stand for nothing."""
        unused = np.zeros(self.vocab_size, bool)
        unused[list(self.config.unused_token_ids)] = True
        return unused
