"""From a model's description to a running engine: sizes are chosen, programs compiled while weights load."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any

import jax

from jaxllm.config import EngineConfig
from jaxllm.engine.core import Engine
from jaxllm.engine.sizes import EngineSizes, Replicas, choose_config, replicas_of
from jaxllm.engine.stats_log import StatsLog
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.memory import give_back_memory
from jaxllm.models.model import Model, Params
from jaxllm.parallel.agreement import AgreedRunner, processes_of, spans_processes
from jaxllm.parallel.partition import Partition, PlacedParams
from jaxllm.parallel.pipeline import Pipeline, is_here, stage_spec, stages_of
from jaxllm.program_cache.executables import open_cache
from jaxllm.runner.keys import Key
from jaxllm.runner.lockstep import JointPrograms, LockstepRunner, ReplicaPrograms
from jaxllm.runner.pipeline import PipelineRunner, StagedWeights
from jaxllm.runner.programs import Programs
from jaxllm.runner.runner import Runner
from jaxllm.runner.spread_pipeline import SpreadPipelineRunner
from jaxllm.tokenization import Tokenizer

CPU_LAYERS_PER_PROGRAM = 10
FEW_WEIGHT_BYTES = 512 << 20
"""Less than that is read in a second, and what compiling takes meanwhile, 0.1 GiB, is much beside it."""


def programs_of(replica: Partition | Pipeline, spec: KVSpec, config: EngineConfig) -> list[Programs]:
    """The programs of each stage of a replica. spec: of the cache of all layers, on each device."""
    stages, cache = stages_of(replica), open_cache()
    if isinstance(replica, Partition) and replica.together is not None:
        return [ReplicaPrograms(replica.whole, spec, config, layers_per_program(), cache, replica)]
    return [Programs(stage.whole, stage_spec(spec, stage), config, layers_per_program(), cache, stage,
                     first=number == 0, last=number == len(stages) - 1) for number, stage in enumerate(stages)]


def _runner_of(replica: Partition | Pipeline, programs: list[Programs], params: Any) -> Runner:
    """params: in any layout, or as ``Weights.placed_on`` gives them."""
    if isinstance(replica, Partition):
        return Runner(programs[0], params)
    spread = any(not stage.here or spans_processes([stage]) for stage in replica.stages)
    return (SpreadPipelineRunner if spread else PipelineRunner)(programs, StagedWeights(replica, params))


def _runners_of(replicas: list[Partition | Pipeline], programs: list[list[Programs]],
                load: Callable[[], Params | PlacedParams | list[PlacedParams]]) -> list[Runner | None]:
    """Of each replica of which anything is here. What is loaded is the first one's; the others have it from there."""
    weights: Any = None
    runners: list[Runner | None] = []
    for replica, each in zip(replicas, programs, strict=True):
        if not is_here(replica):
            runners.append(None)
            continue
        runner = _runner_of(replica, each, load() if weights is None else weights.placed_on(replica))
        weights = runner.weights if weights is None else weights
        runners.append(runner)
    return runners


def _lockstep_of(programs: list[list[Programs]], joint: JointPrograms, params: Any) -> LockstepRunner:
    """Of replicas that take every step together."""
    return LockstepRunner([each for (each,) in programs], joint, params)


def layers_per_program() -> int:
    """How many layers one executable runs. On CPUs few, for the sake of start-up; elsewhere all, as the host must keep
    ahead of the device."""
    return CPU_LAYERS_PER_PROGRAM if jax.default_backend() == "cpu" else sys.maxsize


def build_engine(
    model: Model,
    load: Callable[[], Params | PlacedParams | list[PlacedParams]],
    sizes: EngineSizes,
    *,
    partition: Replicas = None,
    tokenizer: Tokenizer | None = None,
    eos_token_ids: Iterable[int] = (),
    compile_first: Callable[[Programs], Iterable[Key]] = lambda programs: (),
    stats_log: StatsLog | None = None,
    weights_in_place: bool = False,
    generates: bool = True,
) -> Engine:
    """An engine ready to run.

    partition: the devices, and what each has of the model, or a list of these, one for each replica; by default all of
        it is on the default device. Replicas, and the stages of pipelines, have programs of their own.
    load: gives the parameters; called while the programs of ``compile_first`` compile or load in other threads. Few
        weights wait for those that compile, so that they and the compiler's memory are not there at once.
    weights_in_place: that they are in memory already. generates: whether the model is a language model.
    """
    give_back_memory()
    replicas = replicas_of(model, partition)
    config, spec = choose_config(model, sizes, tokenizer, weights_in_place=weights_in_place, partition=replicas)
    programs = [programs_of(replica, spec, config) for replica in replicas]
    with futures.ThreadPoolExecutor(2, "compile") as pool:
        together = isinstance(replicas[0], Partition) and replicas[0].together is not None
        joint = [JointPrograms(programs[0][0], layers_per_program())] if together else []
        wanted = [(stage, key) for stage in [*itertools.chain.from_iterable(programs), *joint] if stage.partition.here
                  for key in compile_first(stage) if key in stage.all_keys()]
        few = jax.default_backend() == "cpu" and model.weight_bytes < FEW_WEIGHT_BYTES
        waits = few and any(stage.must_compile(key) for stage, key in wanted)
        compiling = [pool.submit(stage.compile, key) for stage, key in wanted]
        if waits:
            futures.wait(compiling)
            give_back_memory()
        lockstep: Any = _lockstep_of(programs, joint[0], load()) if joint else None
        runners: Any = _runners_of(replicas, programs, load) if lockstep is None else lockstep.replicas
        for future in compiling:
            future.result()
    shared = spans_processes(replicas)
    if shared:
        runners = [AgreedRunner(runner, processes_of(stages_of(replica)[-1]))
                   for runner, replica in zip(runners, replicas, strict=True)]
    return Engine(runners, config, tokenizer, eos_token_ids, stats_log, generates=generates, in_order=shared,
                  lockstep=lockstep)
