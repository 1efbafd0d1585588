"""``jaxllm plan``: what a model would take, and how fast it could be, on GPUs that are not here."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import Annotated, Any

import typer

from jaxllm.cli import console
from jaxllm.cli.options import Debug, in_panel
from jaxllm.errors import ParameterError

_mesh, _work, _engine = in_panel("Mesh"), in_panel("Work"), in_panel("Engine")
_OPTIONS = {"gpus": "--search", "tensor_parallel_size": "--tensor", "pipeline_parallel_size": "--pipeline",
            "data_parallel_size": "--data", "enable_expert_parallel": "--expert-parallel", "compile": "--compile"}
"""What the parameters are called here whose names are others in Python."""


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """What ``jaxllm.plan`` and ``jaxllm.search_mesh`` both take, under their names."""

    batch: Annotated[int, _work("--batch", "Sequences at once, over all replicas.", show_default=True)] = 64
    context: Annotated[str | None, _work(
        "--context", "Tokens of each, as in 8192 or 8K; by default 8192, or the model's context if that is shorter.")
    ] = None
    dtype: Annotated[str, _engine("--dtype", "auto (bfloat16), bfloat16, float16 or float32.", show_default=True)
                     ] = "auto"
    quantization: Annotated[str | None, _engine(
        "--quantization", "int8, gguf (of a .gguf file) or none (decoded); by default as the model says.")] = None
    kv_cache_dtype: Annotated[str, _engine("--kv-cache-dtype", "auto, int8 or fp8.", show_default=True)] = "auto"
    max_num_batched_tokens: Annotated[int, _engine(
        "--max-num-batched-tokens", "Tokens computed per step.", show_default=True)] = 8192
    max_num_seqs: Annotated[int, _engine(
        "--max-num-seqs", "Samples that a replica runs at once.", show_default=True)] = 256
    block_size: Annotated[int, _engine("--block-size", "Tokens per block of the KV cache.", show_default=True)] = 64
    gpu_memory_utilization: Annotated[float, _engine(
        "--gpu-memory-utilization", "Part of a GPU's memory for weights and KV cache.", show_default=True)] = 0.9
    gpus_per_node: Annotated[int, _mesh(
        "--gpus-per-node", "GPUs that NVLink or PCIe connects.", show_default=True)] = 8
    revision: Annotated[str | None, _engine("--revision", "Branch, tag or commit of a hub model.")] = None


def plan(
    options: PlanOptions,
    model: Annotated[str, typer.Argument(
        metavar="MODEL", show_default=False,
        help="Hub id, folder, .gguf file, packaged name, or a config.json.")],
    gpu: Annotated[str, typer.Option(
        "--gpu", show_default=False, help="a100-40, a100-80, h100, h200, b200, l4, l40s or rtx4090.")],
    tensor: Annotated[int, _mesh("--tensor", "GPUs that share each layer.", show_default=True)] = 1,
    pipeline: Annotated[int, _mesh("--pipeline", "Stages of layers.", show_default=True)] = 1,
    data: Annotated[int, _mesh("--data", "Replicas.", show_default=True)] = 1,
    expert_parallel: Annotated[bool, _mesh(
        "--expert-parallel", "Deal out whole experts over data x tensor.")] = False,
    search: Annotated[int | None, _mesh(
        "--search", "Compare all meshes of so many GPUs, in place of --tensor, --pipeline and --data.", metavar="GPUS")
    ] = None,
    compile_step: Annotated[bool, typer.Option(
        "--compile", help="Also compile the engine's step for the mesh, for about a minute; needs the aot extra.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Debug = False,
) -> None:
    """Say whether a model fits a mesh of GPUs, what its cache holds, what a step exchanges, and what bounds its speed.

    Only the model's configuration is read; no GPU is needed. Exit code 1 if it does not fit.
    """
    console.set_up(quiet=False, debug=debug)
    if search is not None and compile_step:
        raise typer.BadParameter("only for one mesh, not with --search", param_hint="--compile")
    if search is not None and (tensor, pipeline, data, expert_parallel) != (1, 1, 1, False):
        raise typer.BadParameter("give the number of GPUs or the sizes of a mesh, not both", param_hint="--search")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # a GPU that is here is not asked for

    from jaxllm.cli.plan_text import plan_lines, search_lines
    from jaxllm.planning import plan as make_plan
    from jaxllm.planning import search_mesh

    chosen: dict[str, Any] = dataclasses.asdict(options)
    try:
        if search is None:
            found = make_plan(model, gpu, tensor_parallel_size=tensor, pipeline_parallel_size=pipeline,
                              data_parallel_size=data, enable_expert_parallel=expert_parallel, compile=compile_step,
                              **chosen)
            fits, content, lines = found.fits, found.to_dict(), plan_lines(found)
        else:
            searched = search_mesh(model, gpu, search, **chosen)
            fits, content, lines = searched.best.fits, searched.to_dict(), search_lines(searched)
    except ParameterError as error:
        raise ParameterError(_OPTIONS.get(error.parameter, error.parameter), error.value, error.allowed) from None
    if as_json:
        print(json.dumps(content, ensure_ascii=False, indent=2))
    else:
        _print(lines)
    if not fits:
        raise typer.Exit(1)


def _print(sections: list[tuple[str, list[tuple[str, str]]]]) -> None:
    width = max(len(label) for _, lines in sections for label, _ in lines)
    for number, (title, lines) in enumerate(sections):
        print(("\n" if number else "") + console.bold(title, sys.stdout))
        for label, value in lines:
            print(f"  {label:<{width}}  {value}".rstrip())
