"""``plan`` and ``search_mesh``: a model on GPUs that nobody has to own yet, from its configuration alone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from jaxllm.checks import check_integer
from jaxllm.errors import ParameterError
from jaxllm.planning.compiled import check_compilable
from jaxllm.planning.gpus import find_gpu
from jaxllm.planning.mesh import MOST_GPUS, MeshSizes, meshes_of
from jaxllm.planning.planner import Planner, PlanSizes
from jaxllm.planning.result import MeshSearch, Plan
from jaxllm.planning.subject import open_subject

GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Of the meshes that are tried where a model does not fit the one that was asked for."""
NEARLY = 0.95
"""A mesh this near to the fastest is as good, and the simpler one is taken."""


def plan(
    model: str | os.PathLike[str] | Mapping[str, Any],
    gpu: str,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    batch: int = 64,
    context: int | str | None = None,
    dtype: Any = "auto",
    quantization: str | None = None,
    kv_cache_dtype: Any = "auto",
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    block_size: int = 64,
    gpu_memory_utilization: float = 0.9,
    gpus_per_node: int = 8,
    revision: str | None = None,
    compile: bool = False,
) -> Plan:
    """Whether a model fits a mesh of GPUs, how many tokens its cache then holds, what a step exchanges, and the least
    time that it takes. Neither weights nor a GPU are needed.

    model: as for ``LLM``, or the path of a ``config.json``, or what is in it. Weights are not downloaded.
    gpu: of ``jaxllm.planning.GPUS``.
    tensor_parallel_size, pipeline_parallel_size, data_parallel_size, enable_expert_parallel: as for ``LLM``.
    batch, context: sequences at once over all replicas, and tokens of each (by default 8,192, or the model's context
        where that is shorter).
    dtype, quantization, kv_cache_dtype, max_num_batched_tokens, max_num_seqs, block_size, gpu_memory_utilization: as
        for ``LLM``; "auto" is bfloat16.
    gpus_per_node: those that NVLink or PCIe connects; others talk over the network.
    compile: also compile the engine's own step for the mesh, which takes a minute or so, and the ``aot`` extra.

    Counts of bytes are those of the engine's own descriptions. Times are a lower bound: every weight and key is read
    once at the full speed of the memory, products run at the data sheet's rate, and collectives as rings with the
    latency that NCCL itself reckons with.

    Raises ``ParameterError`` for unknown GPUs, sizes that do not fit the model, and ``compile`` where that cannot be;
    ``ModelNotFoundError`` and ``UnsupportedModelError`` as ``LLM`` does; ``EngineError`` where the compiler fails. That
    a model does not fit is no error: ``Plan.problem`` says by how much, and ``Plan.smallest`` which mesh would hold it.
    """
    kind = find_gpu(gpu)
    planner = Planner(
        open_subject(model, kind, dtype, quantization, kv_cache_dtype, revision), kind,
        PlanSizes(batch, context, max_num_batched_tokens, max_num_seqs, block_size, gpu_memory_utilization))
    mesh = MeshSizes(data_parallel_size, pipeline_parallel_size, tensor_parallel_size, enable_expert_parallel,
                     gpus_per_node)
    mesh.check(planner.config)
    if compile:
        check_compilable(planner.gpu.name, mesh)
    found = planner.plan(mesh)
    if not found.fits:
        return planner.with_smallest(found, _smallest(planner, gpus_per_node))
    return planner.with_compiled(found) if compile else found


def search_mesh(
    model: str | os.PathLike[str] | Mapping[str, Any],
    gpu: str,
    gpus: int,
    *,
    batch: int = 64,
    context: int | str | None = None,
    dtype: Any = "auto",
    quantization: str | None = None,
    kv_cache_dtype: Any = "auto",
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    block_size: int = 64,
    gpu_memory_utilization: float = 0.9,
    gpus_per_node: int = 8,
    revision: str | None = None,
) -> MeshSearch:
    """``plan`` for every mesh of so many GPUs, the best first.

    Experts are spread over several replicas where they cannot be cut: ``plan`` compares those meshes one by one.

    Best is the mesh that decodes ``batch`` sequences of ``context`` tokens fastest, those counted that fit at once; of
    meshes within a twentieth of it, the one that needs the fewest GPUs for each layer, and the fewest stages. Those
    that do not fit come last, the nearest first; where none does, its ``smallest`` is the mesh that would.

    Raises as ``plan`` does.
    """
    kind = find_gpu(gpu)
    planner = Planner(
        open_subject(model, kind, dtype, quantization, kv_cache_dtype, revision), kind,
        PlanSizes(batch, context, max_num_batched_tokens, max_num_seqs, block_size, gpu_memory_utilization))
    check_integer("gpus", gpus, 1, MOST_GPUS)
    check_integer("gpus_per_node", gpus_per_node, 1, MOST_GPUS)
    found = _search(planner, gpus, gpus_per_node)
    if found.best.fits:
        return found
    nearest = planner.with_smallest(found.best, _smallest(planner, gpus_per_node))
    return MeshSearch((nearest, *found.plans[1:]), _reason((nearest, *found.plans[1:]), 0))


def _search(planner: Planner, gpus: int, gpus_per_node: int) -> MeshSearch:
    plans = list(_plans(planner, gpus, gpus_per_node))
    fitting = [each for each in plans if each.fits]
    fastest = max((each.decode.tokens_per_second for each in fitting), default=0.0)
    good = [each for each in fitting if each.decode.tokens_per_second >= NEARLY * fastest]
    good.sort(key=lambda each: (each.mesh.expert_parallel, each.mesh.tensor * each.mesh.pipe, each.mesh.pipe))
    others = sorted((each for each in fitting if each not in good), key=lambda each: -each.decode.tokens_per_second)
    unfit = sorted((each for each in plans if not each.fits), key=lambda each: each.memory.short_by)
    ordered = (*good, *others, *unfit)
    return MeshSearch(ordered, _reason(ordered, len(fitting)))


def _plans(planner: Planner, gpus: int, gpus_per_node: int) -> Iterator[Plan]:
    """Of the meshes that are possible; quantized blocks that would be cut rule some out, never that of replicas."""
    for mesh in meshes_of(gpus, planner.config, gpus_per_node):
        try:
            yield planner.plan(mesh)
        except ParameterError as error:
            if error.parameter != "quantization":
                raise


def _reason(plans: tuple[Plan, ...], fitting: int) -> str:
    best = plans[0]
    if not fitting:
        return f"none of {len(plans)} meshes of {best.mesh.gpus} fits; the nearest {best.problem}"
    decode = best.decode
    text = (f"{best.mesh.name} decodes {best.running:,} sequences of {best.context:,} tokens at "
            f"{decode.tokens_per_second:,.0f} tokens/s at most, bound by {decode.limit}")
    rest = plans[1:fitting]
    if rest:
        second = max(rest, key=lambda each: each.decode.tokens_per_second)
        times = second.decode.tokens_per_second / decode.tokens_per_second
        text += (f"; {second.mesh.name} is {times:.2f} times as fast" if times < 1 else
                 f"; {second.mesh.name} is as fast or faster by less than a twentieth, and shares each layer further")
    unfit = len(plans) - fitting
    return text + (f"; {unfit} of {len(plans)} meshes do not fit" if unfit else "")


def _smallest(planner: Planner, gpus_per_node: int) -> MeshSizes | None:
    """The mesh that decodes fastest of the fewest GPUs that hold the model."""
    searches = (_search(planner, gpus, gpus_per_node) for gpus in GPU_COUNTS)
    return next((search.best.mesh for search in searches if search.best.fits), None)


