"""The pure functions of a step, compiled once per bucket, each compilation counted.

``forward`` runs the model over a step's tokens, as three programs: ``begin`` (embedding, positions, attention
metadata), ``layers`` for a few layers at a time, ``end`` (norm, rows to sample). Layers of one kind share their
executable: a CPU takes a third of a second to compile a layer, and as long as that again for each more in the program.
``sample`` turns hidden rows into tokens; the others are small: table deltas, block copies, one slot's sampling state,
log-probabilities of prompt tokens.
"""

from __future__ import annotations

import collections
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, UInt32

from jaxllm.config import EngineConfig
from jaxllm.kv_cache import abstract_pool, block_table, pool
from jaxllm.kv_cache.block_table import BlockTable
from jaxllm.kv_cache.pool import KVPool
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.decoder import StepContext
from jaxllm.models.model import Model, Params, nest
from jaxllm.runner.batch import StepBatch
from jaxllm.runner.buckets import buckets
from jaxllm.runner.host_pool import HostBlocks
from jaxllm.sampling import (
    MAX_LOGPROBS,
    LogitsProcessor,
    RowTable,
    SampleOutput,
    SamplingRows,
    SamplingState,
    SlotRow,
    TokenLogprobs,
    Variant,
    VocabLogprobs,
    init_state,
    mask_padded_vocab,
    mask_words,
    sample,
    set_slot,
    token_logprobs,
    vocab_logprobs,
)
from pallas_kernels import paged_attention_metadata, positions_and_rows

logger = logging.getLogger("jaxllm")

TABLE_CHANGES = 128
"""Table entries changed per call of ``update_table``."""
BLOCK_COPIES = 16
"""Blocks copied per call of ``copy_blocks``."""
SWAP_BLOCKS = 16
"""Blocks moved per call of ``read_blocks`` and ``write_blocks``."""
PROMPT_LOGPROB_ROWS = 64
"""Prompt tokens whose logits are in memory at once."""
VOCAB_LOGPROB_ROWS = 8
"""Rows whose log-probabilities of the whole vocabulary are computed per call of ``vocab_logprobs``."""
SLOW_COMPILE_SECONDS = 2.0


LayerKind = tuple[nnx.GraphDef, ...]
"""The graphs of a run of layers: runs of equal graphs share their executable."""


class Key(NamedTuple):
    """Which executable: a program, the bucket it is compiled for (0 if it has one size), and of which kind: the
    sampler's variant, or the graphs of the layers."""

    program: str
    bucket: int = 0
    kind: Variant | LayerKind | None = None

    def __str__(self) -> str:
        kind = f" ({self.kind.name.lower()})" if isinstance(self.kind, Variant) else ""
        return f"{self.program}{kind}" + (f" for {self.bucket} rows" if self.bucket else "")


class Programs:
    """Every executable that an engine of these sizes can need, compiled when first used or before (``compile``).

    traces: how often each program's Python body ran, by name; it stops growing once the buckets in use are compiled.
    """

    def __init__(self, model: Model, spec: KVSpec, config: EngineConfig, layers_per_program: int) -> None:
        self.model = model
        self.spec = spec
        self.config = config
        self.token_buckets = buckets(config.max_num_batched_tokens)
        self.row_buckets = buckets(config.max_num_seqs)
        self.chunks = layer_chunks(model, layers_per_program)
        self.traces: collections.Counter[str] = collections.Counter()
        self._executables: dict[Key, Any] = {}
        self._lock = threading.Lock()
        self._key_locks: dict[Key, threading.Lock] = collections.defaultdict(threading.Lock)

    def all_keys(self) -> list[Key]:
        """All executables there can be: the bucket formula, written out."""
        return [
            *(Key(program, tokens) for program in ("begin", "end", "prompt_logprobs", "vocab_logprobs")
              for tokens in self.token_buckets),
            *(Key("layers", tokens, kind) for kind in self.kinds for tokens in self.token_buckets),
            *(Key("sample", rows, variant) for variant in Variant for rows in self.row_buckets),
            *(Key(program) for program in self._single_programs),
        ]

    @property
    def _single_programs(self) -> list[str]:
        """The programs of one size."""
        swap = ["read_blocks", "write_blocks"] if self.config.num_swap_blocks else []
        return ["update_table", "copy_blocks", "set_sampling_slot", *swap]

    @property
    def kinds(self) -> list[LayerKind]:
        """The different runs of layers that need an executable each."""
        return list(dict.fromkeys(kind for kind, _ in self.chunks))

    def forward_keys(self, tokens: int) -> list[Key]:
        """What ``forward`` needs for a token bucket."""
        return [Key("begin", tokens), *(Key("layers", tokens, kind) for kind in self.kinds), Key("end", tokens)]

    @property
    def num_executables(self) -> int:
        """Executables compiled so far."""
        return len(self._executables)

    def formula(self) -> str:
        """How many executables there can be, in words."""
        tokens, rows, variants = len(self.token_buckets), len(self.row_buckets), len(Variant)
        return (f"at most {len(self.all_keys())} executables: {4 + len(self.kinds)} programs x {tokens} token buckets "
                f"{self.token_buckets} + {variants} samplers x {rows} row buckets {self.row_buckets} + "
                f"{len(self._single_programs)}")

    def compile(self, key: Key) -> Any:
        """The executable of a key, compiled now if it is not there; threads may compile different ones at once."""
        with self._lock:
            key_lock = self._key_locks[key]
        with key_lock:
            if key not in self._executables:
                watch = threading.Timer(SLOW_COMPILE_SECONDS, logger.info, ("compiling %s ...", key))
                watch.daemon = True
                watch.start()
                started = time.perf_counter()
                try:
                    self._executables[key] = self._lower(key).compile()
                finally:
                    watch.cancel()
                logger.debug("compiled %s in %.2f s", key, time.perf_counter() - started)
            return self._executables[key]

    def init_state(self) -> SamplingState:
        """An empty sampling state."""
        config = self.config
        return init_state(config.max_num_seqs, self.model.config.vocab_size,
                          num_processors=len(config.logits_processors), max_length=config.max_model_len)

    # The programs, as the runner calls them.

    def forward(self, outer: Params, layers: Sequence[Params], cache: KVPool, table: BlockTable, batch: StepBatch
                ) -> tuple[KVPool, Array, Array]:
        """Donates ``cache``. Returns it, the hidden rows to sample from ``[R, D]`` and all hidden rows ``[T, D]``.

        outer, layers: the model's ``outer_params`` and each layer's parameters.
        """
        tokens = batch.token_ids.shape[0]
        x, step = self._run(Key("begin", tokens), outer, table, batch)
        written: KVPool = []
        for kind, chunk in self.chunks:
            x, part = self._run(Key("layers", tokens, kind), layers[chunk], x, step, cache[chunk])
            written += part
        rows, hidden = self._run(Key("end", tokens), outer, x, batch.sample_rows)
        return written, rows, hidden

    def sample(self, variant: Variant, head: Params, state: SamplingState | None, hidden: Array, rows: SamplingRows,
               mask: np.ndarray | None) -> tuple[SamplingState | None, SampleOutput]:
        """Donates ``state``. The first rows of ``hidden`` are sampled, as many as the bucket of ``rows`` holds."""
        return self._run(Key("sample", rows.num_rows, variant), head, state, hidden, rows, mask)

    def vocab_logprobs(self, head: Params, state: SamplingState, hidden: Array, index: np.ndarray, rows: SamplingRows,
                       mask: np.ndarray) -> VocabLogprobs:
        """Log-probabilities of every token under the hidden rows of ``index``, as ``sample`` would see them."""
        return self._run(Key("vocab_logprobs", hidden.shape[0]), head, state, hidden, index, rows, mask)

    def prompt_logprobs(self, head: Params, hidden: Array, first: int, targets: np.ndarray) -> TokenLogprobs:
        """Log-probabilities of ``targets`` under the hidden rows from ``first`` on."""
        return self._run(Key("prompt_logprobs", hidden.shape[0]), head, hidden, np.int32(first), targets)

    def update_table(self, table: BlockTable, changes: np.ndarray) -> BlockTable:
        """Donates ``table``."""
        return self._run(Key("update_table"), table, changes)

    def copy_blocks(self, cache: KVPool, pairs: np.ndarray) -> KVPool:
        """Donates ``cache``."""
        return self._run(Key("copy_blocks"), cache, pairs)

    def read_blocks(self, cache: KVPool, blocks: np.ndarray) -> KVPool:
        """The contents of ``SWAP_BLOCKS`` blocks."""
        return self._run(Key("read_blocks"), cache, blocks)

    def write_blocks(self, cache: KVPool, blocks: np.ndarray, values: HostBlocks) -> KVPool:
        """Donates ``cache``."""
        return self._run(Key("write_blocks"), cache, blocks, values)

    def set_sampling_slot(self, state: SamplingState, slot: int, row: SlotRow) -> SamplingState:
        """Donates ``state``."""
        return self._run(Key("set_sampling_slot"), state, np.int32(slot), row)

    def _run(self, key: Key, *arguments: Any) -> Any:
        executable = self._executables.get(key)
        return (executable or self.compile(key))(*arguments)

    # What they compute: pure functions.

    def _begin(self, outer: Params, table: BlockTable, batch: StepBatch) -> tuple[Float[Array, "T D"], StepContext]:
        size = self.config.block_size
        tokens = batch.token_ids.shape[0]
        where = positions_and_rows(batch.query_start, batch.lengths, tokens)
        slots = block_table.slots(table, 0, where.rows, where.positions, where.valid, size)
        attention = paged_attention_metadata(table.blocks[0], batch.query_start, batch.lengths, tokens, size)
        return self.model.embed(outer, batch.token_ids), self.model.step_context(where.positions, slots, attention)

    def _end(self, outer: Params, x: Float[Array, "T D"], sample_rows: Int[Array, " R"]
             ) -> tuple[Float[Array, "R D"], Float[Array, "T D"]]:
        hidden = self.model.finish(outer, x)
        return hidden[sample_rows], hidden

    def _sample(self, variant: Variant, head: Params, state: SamplingState | None, hidden: Float[Array, "R D"],
                rows: SamplingRows, mask: UInt32[Array, "B W"] | None) -> tuple[SamplingState | None, SampleOutput]:
        missing = rows.num_rows - hidden.shape[0]
        hidden = jnp.pad(hidden, ((0, missing), (0, 0))) if missing > 0 else hidden[:rows.num_rows]
        return sample(self._logits(head, hidden), rows, state, variant, mask, processors=self._processors)

    def _vocab_logprobs(self, head: Params, state: SamplingState, hidden: Float[Array, "T D"],
                        index: Int[Array, " C"], rows: SamplingRows, mask: UInt32[Array, "C W"]) -> VocabLogprobs:
        return vocab_logprobs(self._logits(head, hidden[index]), rows, state, mask, self._processors)

    @property
    def _processors(self) -> tuple[LogitsProcessor, ...]:
        return tuple(processor for _, processor in self.config.logits_processors)

    def _prompt_logprobs(self, head: Params, hidden: Float[Array, "T D"], first: Int[Array, ""],
                         targets: Int[Array, " C"]) -> TokenLogprobs:
        rows = jax.lax.dynamic_slice_in_dim(hidden, first, targets.shape[0])
        return token_logprobs(self._logits(head, rows), targets, MAX_LOGPROBS)

    def _logits(self, head: Params, rows: Float[Array, "B D"]) -> Float[Array, "B V"]:
        logits = mask_padded_vocab(self.model.logits(head, rows), self.config.vocab_size)
        if not self.config.unused_token_ids:
            return logits
        unused = np.zeros(logits.shape[-1], bool)
        unused[list(self.config.unused_token_ids)] = True
        return jnp.where(unused, -jnp.inf, logits)

    # How they are compiled: every argument is known beforehand.

    def _lower(self, key: Key) -> Any:
        graphs = key.kind if isinstance(key.kind, tuple) else ()
        variant = key.kind if isinstance(key.kind, Variant) else Variant.GREEDY
        programs: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
            "begin": (self._begin, ()),
            "layers": (functools.partial(self.model.run_layers, graphs), (1, 3)),
            "end": (self._end, ()),
            "sample": (functools.partial(self._sample, variant), (1,)),
            "prompt_logprobs": (self._prompt_logprobs, ()),
            "vocab_logprobs": (self._vocab_logprobs, ()),
            "update_table": (block_table.update, (0,)),
            "copy_blocks": (pool.copy_blocks, (0,)),
            "read_blocks": (pool.read_blocks, ()),
            "write_blocks": (pool.write_blocks, (0,)),
            "set_sampling_slot": (set_slot, (0,)),
        }
        function, donated = programs[key.program]
        jitted = jax.jit(self._counted(key, function), donate_argnums=donated, keep_unused=True)
        return jitted.lower(*self._arguments(key))

    def _counted(self, key: Key, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.traces[key.program] += 1
            return function(*arguments)

        counted.__name__ = counted.__qualname__ = f"jaxllm_{key.program}"
        return counted

    def _arguments(self, key: Key) -> tuple[Any, ...]:
        config, rows = self.config, self.config.max_num_seqs
        width, vocab = self.model.config.hidden_size, self.model.config.vocab_size
        params = nest({path: jax.ShapeDtypeStruct(spec.shape, spec.dtype) for path, spec in self.model.specs.items()})
        outer, head = self.model.outer_params(params), self.model.head_params(params)
        cache = abstract_pool(self.spec, config.num_blocks, config.block_size)
        table = jax.eval_shape(lambda: block_table.empty(len(self.spec.groups), rows, config.blocks_per_sequence))
        state = jax.eval_shape(self.init_state)
        words = mask_words(vocab)
        batch = StepBatch(_ints(key.bucket), _ints(rows + 1), _ints(rows), _ints(rows))
        if key.program == "begin":
            return outer, table, batch
        if key.program in ("layers", "end"):
            x, step = jax.eval_shape(self._begin, outer, table, batch)
            if key.program == "end":
                return outer, x, batch.sample_rows
            chunk = next(chunk for kind, chunk in self.chunks if kind == key.kind)
            return [params["layers"][layer] for layer in range(chunk.start, chunk.stop)], x, step, cache[chunk]
        if key.program == "sample":
            hidden = jax.ShapeDtypeStruct((rows, width), self.model.dtype)
            variant = Variant(key.kind)  # type: ignore[arg-type]
            mask = jax.ShapeDtypeStruct((key.bucket, words), np.uint32) if variant == Variant.MASKED else None
            return head, state if variant >= Variant.FULL else None, hidden, _no_rows(rows, key.bucket), mask
        if key.program == "vocab_logprobs":
            hidden = jax.ShapeDtypeStruct((key.bucket, width), self.model.dtype)
            mask = jax.ShapeDtypeStruct((VOCAB_LOGPROB_ROWS, words), np.uint32)
            return head, state, hidden, _ints(VOCAB_LOGPROB_ROWS), _no_rows(rows, VOCAB_LOGPROB_ROWS), mask
        if key.program == "prompt_logprobs":
            hidden = jax.ShapeDtypeStruct((key.bucket, width), self.model.dtype)
            return head, hidden, _ints(), _ints(prompt_logprob_rows(key.bucket))
        if key.program == "update_table":
            return table, _ints(TABLE_CHANGES, 4)
        if key.program == "copy_blocks":
            return cache, _ints(BLOCK_COPIES, 2)
        if key.program == "read_blocks":
            return cache, _ints(SWAP_BLOCKS)
        if key.program == "write_blocks":
            return cache, _ints(SWAP_BLOCKS), abstract_pool(self.spec, SWAP_BLOCKS, config.block_size)
        line = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), state)
        return state, _ints(), SlotRow(line.counts, line.flags, line.bias, line.history, line.arguments)


def layer_chunks(model: Model, layers_per_program: int) -> list[tuple[LayerKind, slice]]:
    """Cut the layers into runs, as long as possible up to ``layers_per_program`` while dividing them evenly."""
    layers = len(model.layer_graphs)
    length = max(size for size in range(1, min(layers_per_program, layers) + 1) if layers % size == 0)
    chunks = [slice(first, first + length) for first in range(0, layers, length)]
    return [(model.layer_graphs[chunk], chunk) for chunk in chunks]


def _no_rows(num_slots: int, bucket: int) -> SamplingRows:
    empty = np.zeros(0, np.int32)
    return RowTable(num_slots).rows(empty, empty, bucket)


def _ints(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, np.int32)


def prompt_logprob_rows(token_bucket: int) -> int:
    """How many prompt tokens one call of ``prompt_logprobs`` takes at this bucket."""
    return min(token_bucket, PROMPT_LOGPROB_ROWS)
