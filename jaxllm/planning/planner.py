"""``Planner``: one model and one kind of GPU, planned for any mesh."""

from __future__ import annotations

import dataclasses
import functools

from jaxllm.checks import check_integer, check_real
from jaxllm.config import MAX_BATCHED_TOKENS, MAX_BLOCK_SIZE, MAX_NUM_SEQS, MIN_BATCHED_TOKENS, EngineConfig
from jaxllm.engine.block_groups import BlockGroups
from jaxllm.errors import ParameterError
from jaxllm.models.config import DecoderConfig
from jaxllm.planning.collectives import Collective, collectives_of
from jaxllm.planning.compiled import StepToCompile, compile_step
from jaxllm.planning.gpus import GPU
from jaxllm.planning.load import StageLoad, stage_loads
from jaxllm.planning.mesh import MeshSizes
from jaxllm.planning.result import Plan, PlannedCache, PlannedMemory, PlannedModel, PlannedStage
from jaxllm.planning.shards import cache_of_one, config_of_one
from jaxllm.planning.subject import Subject
from jaxllm.planning.temporary import state_bytes, temporary_bytes
from jaxllm.planning.timing import StepTime, decode_cost, prefill_cost, step_time
from jaxllm.quantities import parse_count

DEFAULT_CONTEXT = 8192
MOST_SEQUENCES = 1 << 24


@dataclasses.dataclass(frozen=True)
class PlanSizes:
    """What ``plan`` is asked for, as its arguments say; ``ParameterError`` for what is out of range."""

    batch: int
    context: int | str | None
    max_num_batched_tokens: int
    max_num_seqs: int
    block_size: int
    gpu_memory_utilization: float

    def __post_init__(self) -> None:
        check_integer("batch", self.batch, 1, MOST_SEQUENCES)
        check_integer("max_num_batched_tokens", self.max_num_batched_tokens, MIN_BATCHED_TOKENS, MAX_BATCHED_TOKENS)
        check_integer("max_num_seqs", self.max_num_seqs, 1, MAX_NUM_SEQS)
        check_integer("block_size", self.block_size, 1, MAX_BLOCK_SIZE)
        check_real("gpu_memory_utilization", self.gpu_memory_utilization, 0.0, 1.0, open_low=True)

    def context_of(self, config: DecoderConfig) -> int:
        """Tokens of a sequence."""
        longest = config.max_position_embeddings
        if self.context is None:
            return min(DEFAULT_CONTEXT, longest)
        number = parse_count("context", self.context)
        if number > longest:
            raise ParameterError("context", self.context, f"at most {longest}, the model's context")
        return number


class Planner:
    """Plans of one model on one kind of GPU."""

    def __init__(self, subject: Subject, gpu: GPU, sizes: PlanSizes) -> None:
        self.subject, self.gpu, self.sizes = subject, gpu, sizes
        self.model, self.kv = subject.model, subject.kv
        self.config = self.model.config
        self.context = sizes.context_of(self.config)

    def plan(self, mesh: MeshSizes) -> Plan:
        """For a mesh that was checked."""
        loads = stage_loads(self.model, self.kv, mesh)
        memory, num_blocks = self._memory(mesh, loads)
        cache = self._cache(mesh, loads, num_blocks)
        fits = memory.short_by == 0
        running = min(self.sizes.batch, cache.sequences) if fits else self.sizes.batch
        decode, exchanged = self._decode(mesh, loads, running)
        return Plan(
            model=self._described, gpu=self.gpu, mesh=mesh, batch=self.sizes.batch, context=self.context,
            running=running, max_num_batched_tokens=self.sizes.max_num_batched_tokens,
            stages=tuple(PlannedStage(load.layers.start, load.layers.stop - 1, load.weight_bytes,
                                      len(load.layers) * load.kv_layer_bytes) for load in loads),
            memory=memory, cache=cache,
            collectives=tuple(each for stage in exchanged for each in stage),
            decode=decode, prefill=self._prefill(mesh, loads), fits=fits,
            problem=None if fits else self._problem(mesh, memory), notes=tuple(self._notes(mesh, running, fits)))

    def with_compiled(self, plan: Plan) -> Plan:
        """A plan that fits, with what the compiler makes of its step."""
        sizes, heads = self.sizes, plan.cache.kv_heads_per_gpu
        longest = self.config.max_position_embeddings
        config = EngineConfig(
            max_num_seqs=sizes.max_num_seqs, max_num_batched_tokens=sizes.max_num_batched_tokens, max_model_len=longest,
            block_size=sizes.block_size, num_blocks=plan.cache.num_blocks, vocab_size=self.config.vocab_size,
            windows=self.kv.windows, data_parallel_size=plan.mesh.data, pipeline_parallel_size=plan.mesh.pipe)
        compiled = compile_step(StepToCompile(
            self.gpu.name, self.model, cache_of_one(self.kv, heads), plan.mesh, config, plan.decode.tokens))
        return dataclasses.replace(plan, compiled=compiled, method="compiled")

    def with_smallest(self, plan: Plan, mesh: MeshSizes | None) -> Plan:
        """A plan that does not fit, with the mesh that would."""
        instead = (f"the smallest mesh of {self.gpu.name} that would is {mesh.name}" if mesh is not None else
                   f"no mesh of {self.gpu.name} that was tried would")
        gpus = "" if mesh is None or mesh.gpus == 1 else f", {mesh.gpus} GPUs"
        return dataclasses.replace(plan, smallest=mesh, problem=f"{plan.problem}; {instead}{gpus}")

    @functools.cached_property
    def _described(self) -> PlannedModel:
        model, moe = self.model, self.config.moe
        taken = 1.0 if moe is None else moe.experts_per_token / moe.num_experts
        embedding = 0 if self.config.tie_word_embeddings else model.specs["embedding.weight"].size
        active = sum(spec.size * taken if spec.is_of_experts else spec.size for spec in model.specs.values())
        return PlannedModel(
            name=self.subject.name, family=self.config.family, parameters=model.num_parameters,
            active_parameters=round(active) - embedding, layers=self.config.num_layers, dtype=model.dtype.name,
            quantization=self.subject.quantization, weight_bytes=model.weight_bytes)

    @functools.cached_property
    def _state_bytes(self) -> int:
        return state_bytes(self.model, self.kv, self.sizes.max_num_seqs, self.config.max_position_embeddings,
                           self.sizes.block_size)

    @property
    def _blocks_each(self) -> int:
        """That one sequence of the context takes, over all groups of layers."""
        return BlockGroups(self.kv.windows, self.sizes.block_size).blocks_for(self.context)

    def _step_tokens(self, mesh: MeshSizes) -> int:
        """The most of one step: those that are under way share ``max_num_batched_tokens``."""
        return -(-self.sizes.max_num_batched_tokens // mesh.pipe)

    def _memory(self, mesh: MeshSizes, loads: list[StageLoad]) -> tuple[PlannedMemory, int]:
        """Of the stage whose GPUs are fullest, and the blocks that all stages' pools have."""
        sizes, total = self.sizes, self.gpu.memory_bytes
        temporary = temporary_bytes(self.model, mesh, self._step_tokens(mesh), sizes.max_num_seqs)
        budget = int(total * sizes.gpu_memory_utilization)
        block_bytes = [load.pool_arrays * load.kv_layer_bytes * sizes.block_size for load in loads]
        pools = [min(budget, total - temporary) - load.weight_bytes - self._state_bytes for load in loads]
        num_blocks = min(pool // nbytes for pool, nbytes in zip(pools, block_bytes, strict=True))
        needed = self._blocks_each + 1
        short = max(needed * nbytes - pool for pool, nbytes in zip(pools, block_bytes, strict=True))
        fullest = pools.index(min(pools))
        memory = PlannedMemory(
            total=total, weights=loads[fullest].weight_bytes, state=self._state_bytes, temporary=temporary,
            kv_pool=max(num_blocks, 0) * block_bytes[fullest], short_by=max(short, 0))
        return memory, max(num_blocks, 0)

    def _cache(self, mesh: MeshSizes, loads: list[StageLoad], num_blocks: int) -> PlannedCache:
        block_size, heads = self.sizes.block_size, config_of_one(self.config, mesh).num_kv_heads
        usable = max(num_blocks - 1, 0)
        return PlannedCache(
            dtype=self.kv.entries["k"].dtype_name, bytes_per_token=self.kv.bytes_per_token,
            bytes_per_token_per_gpu=max(len(load.layers) * load.kv_layer_bytes for load in loads),
            kv_heads_per_gpu=heads, copies=mesh.tensor * heads // self.config.num_kv_heads, block_size=block_size,
            num_blocks=num_blocks, tokens=usable // len(self.kv.windows) * block_size * mesh.data,
            sequences=usable // self._blocks_each * mesh.data)

    def _decode(self, mesh: MeshSizes, loads: list[StageLoad], running: int
                ) -> tuple[StepTime, list[list[Collective]]]:
        """One more token of all that run: a step of each replica, or, with several stages, as many as these."""
        each = -(-running // mesh.data)
        under_way = min(mesh.pipe, each)
        sequences = -(-each // under_way)
        group = sequences * (mesh.data if mesh.spread else 1)
        exchanged = [collectives_of(self.model, mesh, self.gpu, load, sequences, sequences) for load in loads]
        costs = [decode_cost(load, sequences, group, self.context) for load in loads]
        return step_time(costs, exchanged, self.gpu, self.model.dtype, tokens=sequences, under_way=under_way,
                         total=running), exchanged

    def _prefill(self, mesh: MeshSizes, loads: list[StageLoad]) -> StepTime:
        tokens = self._step_tokens(mesh)
        group = tokens * (mesh.data if mesh.spread else 1)
        exchanged = [collectives_of(self.model, mesh, self.gpu, load, tokens, max(tokens // self.context, 1))
                     for load in loads]
        costs = [prefill_cost(load, tokens, group, self.context) for load in loads]
        return step_time(costs, exchanged, self.gpu, self.model.dtype, tokens=tokens, under_way=mesh.pipe,
                         total=tokens * mesh.pipe * mesh.data)

    def _problem(self, mesh: MeshSizes, memory: PlannedMemory) -> str:
        return (f"does not fit {mesh.name}: with one sequence of {self.context:,} tokens a GPU would have to hold "
                f"{memory.short_by:,} bytes ({memory.short_by / 2**30:.1f} GiB) more than "
                f"gpu_memory_utilization={self.sizes.gpu_memory_utilization:g} of its {memory.total:,}")

    def _notes(self, mesh: MeshSizes, running: int, fits: bool) -> list[str]:
        notes = list(self.subject.notes)
        if self.config.latent is None and mesh.tensor > self.config.num_kv_heads:
            notes.append(f"the model has {self.config.num_kv_heads} kv heads: each is kept by "
                         f"{mesh.tensor // self.config.num_kv_heads} GPUs")
        if self.config.latent is not None and mesh.tensor > 1:
            notes.append("latents are shared by all heads: every GPU of a stage keeps all of them")
        if mesh.expert_parallel and mesh.data > 1 and not mesh.spread:
            notes.append("replicas that are pipelines keep all experts: they are dealt out within each of them")
        if fits and running < self.sizes.batch:
            notes.append(f"{running:,} of the {self.sizes.batch:,} sequences fit at once; the others wait")
        if mesh.tensor > mesh.gpus_per_node:
            notes.append(f"tensor_parallel_size={mesh.tensor} goes beyond a node: every all-reduce crosses the network")
        return notes
