"""The pure functions of a step, compiled once per bucket, each compilation counted.

``forward`` runs the model over a step's tokens, as three programs: ``begin`` (embedding, positions, attention
metadata), ``layers`` for a few layers at a time, ``end`` (norm, rows to sample). Layers of one kind share their
executable: a CPU takes a third of a second to compile a layer, and as long as that again for each more in the program.
Where nobody reads a step's hidden rows (all steps of a long prompt but its last), ``fill`` takes the place of the last
layers, without what only those rows need.
``sample`` turns hidden rows into tokens; the others are small: table deltas, block copies, one slot's sampling state,
log-probabilities of prompt tokens or of the whole vocabulary.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxllm.config import EngineConfig
from jaxllm.kv_cache.block_table import BlockTable
from jaxllm.kv_cache.pages import cleared
from jaxllm.kv_cache.pool import KVPool
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Leaves, Model, Params
from jaxllm.models.step import StepContexts
from jaxllm.parallel.mesh import takes_turns
from jaxllm.parallel.partition import Partition
from jaxllm.program_cache.executables import ExecutableCache
from jaxllm.runner.batch import StepBatch
from jaxllm.runner.buckets import buckets
from jaxllm.runner.functions import StepFunctions
from jaxllm.runner.host_pool import HostBlocks
from jaxllm.runner.keys import FILL_LAYERS, Key, layer_chunks
from jaxllm.runner.signatures import Signatures
from jaxllm.sampling import SampleOutput, SamplingRows, SamplingState, SlotRow, TokenLogprobs, Variant, VocabLogprobs


class Programs:
    """Every executable that an engine of these sizes can need, compiled when first used or before (``compile``).

    spec: of the cache on each device. cache: where executables come from; ``None`` compiles each. partition: the
    devices, and what each has of the model; by default all of it is on the default device. first, last: whether the
    embedding is there, and whether norm and head are: a stage of a pipeline has some layers, and may have neither.
    traces: how often each program's Python body ran, by name; it stops growing once the buckets in use are compiled.
    """

    def __init__(self, model: Model, spec: KVSpec, config: EngineConfig, layers_per_program: int,
                 cache: ExecutableCache | None = None, partition: Partition | None = None, *,
                 first: bool = True, last: bool = True) -> None:
        self.cache = ExecutableCache(None) if cache is None else cache
        self.model = model
        self.partition = Partition(model) if partition is None else partition
        self.spec = spec
        self.config = config
        self.first, self.last = first, last
        self.token_buckets = buckets(config.step_budget)
        self.row_buckets = buckets(config.max_num_seqs)
        self.chunks = layer_chunks(model, spec, layers_per_program)
        self._functions = StepFunctions(self.partition.local, model.config.vocab_size, spec, config, self.chunks)
        self._signatures = Signatures(self._functions, self.partition, first)
        self.traces: collections.Counter[str] = collections.Counter()
        self._executables: dict[Key, Any] = {}
        self._lock = threading.Lock()
        self._key_locks: dict[Key, threading.Lock] = collections.defaultdict(threading.Lock)

    def all_keys(self) -> list[Key]:
        """All executables there can be: the bucket formula, written out."""
        return [
            *(Key(program, tokens) for program in self._programs_of_tokens for tokens in self.token_buckets),
            *(Key("layers", tokens, kind) for kind in self.kinds for tokens in self.token_buckets),
            *self.fill_keys(),
            *(Key("sample", rows, variant) for variant in self._variants for rows in self.row_buckets),
            *(Key(program) for program in self._single_programs),
        ]

    @property
    def _begins(self) -> str:
        return "begin" if self.first else "resume"

    @property
    def _programs_of_tokens(self) -> list[str]:
        """The programs of each token bucket, but for the layers'."""
        return [self._begins, *(["end", "prompt_logprobs", "vocab_logprobs"] if self.last else [])]

    @property
    def _variants(self) -> list[Variant]:
        return list(Variant) if self.last else []

    @property
    def _single_programs(self) -> list[str]:
        """The programs of one size."""
        swap = ["read_blocks", "write_blocks"] if self.config.num_swap_blocks else []
        sampling = ["empty_state", "set_sampling_slot"] if self.last else []
        return ["allocate_pool", "update_table", "copy_blocks", *sampling, *swap]

    @property
    def kinds(self) -> list[int]:
        """The kinds of runs of layers, which need an executable each."""
        return sorted({chunk.kind for chunk in self.chunks})

    def forward_keys(self, tokens: int) -> list[Key]:
        """What ``forward`` needs for a token bucket."""
        end = [Key("end", tokens)] if self.last else []
        return [Key(self._begins, tokens), *(Key("layers", tokens, kind) for kind in self.kinds), *end]

    def fill_keys(self) -> list[Key]:
        """What a step from which nothing is read needs in place of its last layers: only steps of a long prompt are
        such, all but its last, and these have the largest bucket's tokens."""
        if not (self.last and self.kinds):
            return []
        chunk = self.chunks[-1]
        short = chunk.layers.stop - chunk.layers.start <= FILL_LAYERS
        return [Key("fill", self.token_buckets[-1], chunk.kind)] if short else []

    @property
    def num_executables(self) -> int:
        """Executables compiled so far."""
        return len(self._executables)

    def formula(self) -> str:
        """How many executables there can be, in words."""
        tokens, rows, variants = len(self.token_buckets), len(self.row_buckets), len(self._variants)
        programs = len(self._programs_of_tokens) + len(self.kinds)
        return (f"at most {len(self.all_keys())} executables: {programs} programs x {tokens} token buckets "
                f"{self.token_buckets} + {variants} samplers x {rows} row buckets {self.row_buckets} + "
                f"{len(self._single_programs) + len(self.fill_keys())}")

    def compile(self, key: Key) -> Any:
        """The executable of a key, compiled now if it is not there; threads may compile different ones at once."""
        with self._lock:
            key_lock = self._key_locks[key]
        with key_lock:
            if key not in self._executables:
                self._executables[key] = self.cache.get(str(key), functools.partial(self.lower, key),
                                                        self._describe(key), self._devices)
            return self._executables[key]

    def must_compile(self, key: Key) -> bool:
        """Whether ``compile`` is known to have to, without trying it."""
        return self.cache.must_compile(self._describe(key))

    # The programs, as the runner calls them.

    def allocate_pool(self) -> KVPool:
        """An empty pool, which takes memory as its blocks are first written."""
        return cleared(self._run(Key("allocate_pool")))

    def empty_state(self) -> SamplingState:
        """An empty sampling state."""
        return self._run(Key("empty_state"))

    def forward(self, outer: Params, layers: Sequence[Leaves], cache: KVPool, table: BlockTable, newest: Array,
                batch: StepBatch) -> tuple[KVPool, Array, Array]:
        """Donates ``cache``. Returns it, the hidden rows to sample from ``[B, D]`` and all hidden rows ``[T, D]``.

        outer, layers: the model's ``outer_params`` and the leaves of each layer's parameters. newest: each slot's
        newest token.
        """
        x, step, sample_rows = self.begin(outer, table, newest, batch)
        cache, x = self.layers(layers, x, step, cache)
        rows, hidden = self.end(outer, x, sample_rows)
        return cache, rows, hidden

    def begin(self, outer: Params, table: BlockTable, newest: Array, batch: StepBatch
              ) -> tuple[Array, StepContexts, Array]:
        """The residual stream's beginning ``[T, D]``, what the layers share, and the rows to sample from."""
        return self._run(Key("begin", batch.num_tokens), outer, table, newest, batch)

    def resume(self, table: BlockTable, batch: StepBatch) -> tuple[StepContexts, Array]:
        """``begin`` where an earlier stage has begun the residual stream."""
        return self._run(Key("resume", batch.num_tokens), table, batch)

    def layers(self, layers: Sequence[Leaves], x: Array, step: StepContexts, cache: KVPool, *, read: bool = True
               ) -> tuple[KVPool, Any]:
        """The layers, as many as there are here. Donates ``x`` and ``cache``. read: whether somebody reads the hidden
        rows; if not there may be none."""
        written: KVPool = cache.copy()
        result: Any = x
        fill = None if read else next((key for key in self.fill_keys() if key.bucket == self._bucket(x)), None)
        for number, chunk in enumerate(self.chunks, 1):
            arguments = (layers[chunk.layers], result, step.select(chunk.groups),
                         [written[number] for number in chunk.arrays])
            if fill is not None and number == len(self.chunks):
                result, part = None, self._run(fill, *arguments)
            else:
                result, part = self._run(Key("layers", self._bucket(x), chunk.kind), *arguments)
            for array, values in zip(chunk.arrays, part, strict=True):
                written[array] = values
        return written, result

    def _bucket(self, x: Array) -> int:
        return x.shape[0]

    def end(self, outer: Params, x: Array, sample_rows: Array) -> tuple[Array, Array]:
        """The hidden rows to sample from, and all."""
        return self._run(Key("end", x.shape[0]), outer, x, sample_rows)

    def sample(self, variant: Variant, head: Params, state: SamplingState | None, newest: Array, hidden: Array,
               rows: SamplingRows, mask: np.ndarray | None) -> tuple[SamplingState | None, Array, SampleOutput]:
        """Donates ``state``. The first rows of ``hidden`` are sampled, as many as the bucket of ``rows`` holds."""
        return self._run(Key("sample", rows.num_rows, variant), head, state, newest, hidden, rows, mask)

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
        results = (executable or self.compile(key))(*arguments)
        return jax.block_until_ready(results) if self._takes_turns else results

    @functools.cached_property
    def _takes_turns(self) -> bool:
        return takes_turns(self.partition.mesh)

    def lower(self, key: Key) -> jax.stages.Lowered:
        """A program, traced and not compiled. The devices need not be here: their mesh may be of a topology's."""
        function, donated = self._functions.of(key)
        # Not ``keep_unused``: with it JAX (0.12) keeps every executable until ``jax.clear_caches``, as its cache of
        # pruned programs then has the very key of an entry as the value.
        over_devices = self._signatures.over_devices(key, self._counted(key, function))
        arguments = self._signatures.of(key)
        # Where there are no arguments, nothing else says where the results go.
        results = None if arguments or self.partition.device is None else self.partition.replicated
        return jax.jit(over_devices, donate_argnums=donated, out_shardings=results).lower(*arguments)

    def _describe(self, key: Key) -> tuple[object, ...] | None:
        """All that a program depends on beside the sources; ``None`` where functions of the user are among it."""
        if self.config.logits_processors:
            return None
        local = self.partition.local
        return (*key, self.chunks, local.config, local.dtype, local.quantized, self.spec,
                dataclasses.replace(self.config, seed=None, overlap=True, data_parallel_size=1),
                sorted({device.device_kind for device in self._devices or jax.local_devices()[:1]}))

    @property
    def _devices(self) -> list[jax.Device]:
        """The devices, but for the default one alone."""
        mesh = self.partition.mesh
        found = [] if mesh is None else list(mesh.devices.flat)
        return [] if found == jax.local_devices()[:1] else found

    def _counted(self, key: Key, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.traces[key.program] += 1
            return function(*arguments)

        counted.__name__ = counted.__qualname__ = f"jaxllm_{key.program}"
        return counted
