"""The process that compiles a step: it takes a pickled ``StepToCompile`` and gives a pickled ``CompiledStep``."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import jax

from jaxllm.parallel.mesh import DATA, TENSOR
from jaxllm.parallel.partition import Partition
from jaxllm.parallel.pipeline import Pipeline, stage_spec
from jaxllm.parallel.spread import SpreadPartition
from jaxllm.planning.compiled import TARGETS, CompiledProgram, CompiledStep, StepToCompile, collectives_in
from jaxllm.runner.buckets import bucket_for
from jaxllm.runner.keys import Key
from jaxllm.runner.lockstep import JointPrograms, ReplicaPrograms
from jaxllm.runner.programs import Programs
from jaxllm.sampling import Variant
from pallas_kernels import aot
from pallas_kernels.aot.gpus import lowering_for


def compile_programs(step: StepToCompile) -> CompiledStep:
    """Lower and compile the engine's programs, stage by stage."""
    stages = [_programs_of(step, number) for number in range(step.mesh.pipe)]
    joint = [JointPrograms(stages[0], sys.maxsize)] if step.mesh.spread else []
    tokens = bucket_for(stages[-1].token_buckets, step.decode_tokens)
    rows = bucket_for(stages[-1].row_buckets, min(tokens, step.config.max_num_seqs))
    sample = Key("sample", rows, Variant.GREEDY)
    decode = [program for number, stage in enumerate(stages)
              for program in _compiled(step, stage, number, [*stage.forward_keys(tokens), *[sample] * stage.last])]
    decode += [program for each in joint for program in _compiled(step, each, 0, each.forward_keys(tokens))]
    largest = [program for number, stage in enumerate(joint or stages) for program in _compiled(
        step, stage, number, [key for key in stage.forward_keys(stage.token_buckets[-1]) if key.program == "layers"])]
    resident = [sum(program.argument_bytes for program in decode if program.stage == number)
                for number in range(len(stages))]
    if step.model.config.tie_word_embeddings and len(stages) == 1:
        head = stages[0].partition.local.head_spec  # an argument of two programs
        resident[0] -= sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(head.abstract()))
    return CompiledStep(tuple(decode), tuple(largest), tuple(resident))


def _programs_of(step: StepToCompile, number: int) -> Programs:
    """The programs of a stage, on GPUs of which nobody has to have one."""
    mesh, config = step.mesh, step.config
    if mesh.spread:
        all_gpus = aot.mesh_of(TARGETS[step.gpu], (mesh.data, mesh.tensor), (DATA, TENSOR))
        own = aot.mesh_of(TARGETS[step.gpu], (mesh.tensor,), (TENSOR,))
        replica = Partition(step.model, own, True, SpreadPartition(step.model, all_gpus, True))
        return ReplicaPrograms(step.model, step.kv, config, sys.maxsize, None, replica)
    gpus = aot.mesh_of(TARGETS[step.gpu], (mesh.tensor,), (TENSOR,))
    if mesh.pipe == 1:
        partition, spec = Partition(step.model, gpus, by_expert=mesh.expert_parallel), step.kv
    else:
        partition = Pipeline(step.model, (gpus,) * mesh.pipe, mesh.expert_parallel).stages[number]
        spec = stage_spec(step.kv, partition)
    return Programs(partition.whole, spec, config, sys.maxsize, None, partition, first=number == 0,
                    last=number == mesh.pipe - 1)


def _compiled(step: StepToCompile, programs: Programs, stage: int, keys: Iterable[Key]) -> Iterator[CompiledProgram]:
    """Each program as often as a step runs it: one serves all runs of layers that are alike."""
    for key in keys:
        # A mesh of several says itself what its GPUs are.
        alone = programs.partition.size == 1
        with lowering_for(TARGETS[step.gpu]) if alone else contextlib.nullcontext():
            lowered = programs.lower(key)
            executable = lowered.compile()
        memory: Any = executable.memory_analysis()
        text = lowered.as_text()
        compiled = CompiledProgram(
            str(key), stage, int(memory.argument_size_in_bytes), int(memory.temp_size_in_bytes),
            "triton_kernel_call" in text or "mosaic_gpu" in text,
            tuple(collectives_in(executable.as_text() or "", step.mesh.tensor)))
        runs = sum(chunk.kind == key.kind for chunk in programs.chunks) if key.program == "layers" else 1
        yield from [compiled] * runs


def main() -> None:
    """From standard input to standard output."""
    step = pickle.load(sys.stdin.buffer)
    # What compilers write to the standard output must not be among the answer.
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    aot.prepare()
    pickle.dump(compile_programs(step), answer)
    answer.close()


if __name__ == "__main__":
    main()
