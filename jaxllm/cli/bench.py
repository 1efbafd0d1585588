"""``jaxllm bench``: how fast a model runs on this machine, and what part of what the machine can do that is."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxllm.cli import console
from jaxllm.cli.options import Debug, EngineOptions, Quiet, format_bytes, in_panel

if TYPE_CHECKING:
    from jaxllm.bench import Cost, MachineSpeed, ModelCosts, Speed
    from jaxllm.kv_cache import KVSpec
    from jaxllm.models.model import Model

_model, _work = in_panel("Model"), in_panel("Work")


@dataclasses.dataclass(frozen=True)
class WorkOptions:
    """What is measured."""

    prompt_tokens: Annotated[int, _work("--prompt-tokens", "Length of every prompt.", show_default=True, min=1)] = 128
    output_tokens: Annotated[int, _work(
        "--output-tokens", "Tokens generated after each, whatever they are.", show_default=True, min=1)] = 64
    concurrency: Annotated[int, _work(
        "--concurrency", "Requests submitted together, to measure throughput.", show_default=True, min=1)] = 16
    repeat: Annotated[int, _work(
        "--repeat", "Timed runs of each, after an untimed one; medians count.", show_default=True, min=1)] = 3


def bench(
    work: WorkOptions,
    engine: EngineOptions,
    name: Annotated[str | None, typer.Argument(
        metavar="MODEL", show_default=False,
        help="Hub id, folder, .gguf file or packaged name; by default the packaged model.")] = None,
    revision: Annotated[str | None, _model("--revision", "Branch, tag or commit of a hub model.")] = None,
    dtype: Annotated[str, _model("--dtype", "auto, bfloat16, float16 or float32.", show_default=True)] = "auto",
    quantization: Annotated[str | None, _model(
        "--quantization", "gguf (as a .gguf file stores its weights), gguf-a8 (so, with activations of 8 bits), "
        "int8 or none (decoded); by default as the model says.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure latency (one request alone) and throughput (many at once) of a model.

    Prompts are random tokens and outputs have a fixed length, so that only sizes matter; speculation is off. Each phase
    is held against a roofline: the bytes that it has to read and the operations that it has to compute, at the speeds
    that simple programs reach here.
    """
    console.set_up(quiet=quiet, debug=debug)

    from jaxllm.bench import ModelCosts, measure_machine, measure_speed
    from jaxllm.engine.sizes import cache_spec
    from jaxllm.llm import LLM
    from jaxllm.loading import open_model, open_source
    from jaxllm.parallel.pipeline import stages_of
    from jaxllm.weights import default_model

    for option, size in (("--data-parallel-size", engine.data_parallel_size),
                         ("--pipeline-parallel-size", engine.pipeline_parallel_size)):
        if size != 1:
            raise typer.BadParameter(f"{size}: the bound that it prints is of devices that share every layer",
                                     param_hint=option)
    source = open_source(name or default_model(), revision)
    opened = open_model(source, dtype, quantization=quantization)
    model = opened.model
    sizes = engine.given()
    if sizes["max_num_seqs"] is None:
        sizes["max_num_seqs"] = work.concurrency
    llm = LLM(source, dtype=dtype, quantization=quantization, skip_tokenizer_init=True, speculative_config=None,
              **sizes)
    lengths = {"prompt_tokens": work.prompt_tokens, "output_tokens": work.output_tokens, "repeat": work.repeat}
    console.note("measuring one request alone ...")
    alone = measure_speed(llm, requests=1, **lengths)
    console.note(f"measuring {work.concurrency} at once ...")
    together = measure_speed(llm, requests=work.concurrency, **lengths)
    console.note("measuring the machine ...")
    machine = measure_machine(model.dtype)
    # What a device does, which is what a device's speed bounds.
    local = stages_of(engine.replicas(model)[0])[0].local
    spec = cache_spec(local, engine.kv_cache_dtype)
    costs = ModelCosts.of(local, spec)
    report = {
        "model": source.name, "dtype": model.dtype.name, "quantization": opened.quantization,
        "kv_cache_dtype": spec.entries["k"].dtype_name,
        "parameters": model.num_parameters,
        "engine": dataclasses.asdict(llm.engine.config), "machine": _machine(machine, local, spec),
        "latency": dataclasses.asdict(alone), "throughput": dataclasses.asdict(together),
        "roofline": list(_roofline(costs, machine, alone, together, llm.engine.config.max_num_batched_tokens)),
    }
    print(json.dumps(report, ensure_ascii=False, indent=2)) if as_json else _print(report)


def _machine(machine: MachineSpeed, model: Model, spec: KVSpec) -> dict[str, Any]:
    import jax

    from jaxllm.cli.report import kernels_of

    return {"device": jax.devices()[0].device_kind, **dataclasses.asdict(machine), "kernels": kernels_of(model, spec)}


def _roofline(costs: ModelCosts, machine: MachineSpeed, alone: Speed, together: Speed, budget: int
              ) -> Iterator[dict[str, Any]]:
    """Each phase's cost and time: a prompt alone, a token alone, and all of the requests together."""
    from jaxllm.bench import Chunk

    prompt, later = alone.prompt_tokens, alone.output_tokens - 1
    yield _phase("prompt, alone", costs.prefill([Chunk(0, prompt)], budget), alone.ttft, machine)
    if alone.time_per_token is not None:
        yield _phase("token, alone", costs.decode(prompt + later // 2, 1), alone.time_per_token, machine)
    # Prompts all computed first, then all requests decoding: the fewest steps, and so the least to read.
    requests = together.requests
    total = costs.prefill([Chunk(0, prompt)] * requests, budget) + costs.decode(prompt, later, requests)
    yield _phase(f"{requests} request{'s' * (requests > 1)}", total, together.seconds, machine)


def _phase(name: str, cost: Cost, seconds: float, machine: MachineSpeed) -> dict[str, Any]:
    """seconds: how long it took. bound: how long it would take at least."""
    bound = cost.seconds(machine.bytes_per_second, machine.flops_per_second)
    return {
        "phase": name, "bytes": cost.bytes, "flops": cost.flops, "seconds": seconds, "bound": bound,
        "of_bandwidth": cost.bytes / seconds / machine.bytes_per_second,
        "of_peak": cost.flops / seconds / machine.flops_per_second, "of_bound": bound / seconds,
        "limited_by": "reading" if cost.bytes / machine.bytes_per_second == bound else "computing",
    }


def _print(report: dict[str, Any]) -> None:
    machine, engine = report["machine"], report["engine"]
    print(console.bold(report["model"], sys.stdout) + f"  {report['parameters']:,} parameters in {report['dtype']}"
          + (f", quantization {report['quantization']}" if report["quantization"] else ""))
    print(f"  {machine['device']}: reads {machine['bytes_per_second'] / 1e9:.1f} GB/s, multiplies at "
          f"{machine['flops_per_second'] / 1e9:,.0f} GFLOP/s")
    print("  kernels: " + ", ".join(f"{operation}: {name}" for operation, name in machine["kernels"].items()))
    print(f"  {engine['max_num_seqs']} samples at once, {engine['max_num_batched_tokens']} tokens a step\n")
    for title, speed in (("Latency", report["latency"]), ("Throughput", report["throughput"])):
        requests = "1 request" if speed["requests"] == 1 else f"{speed['requests']} requests"
        print(console.bold(title, sys.stdout) + f"  {requests} of {speed['prompt_tokens']} prompt and "
              f"{speed['output_tokens']} output tokens")
        per_token = speed["time_per_token"]
        each = "" if per_token is None else f", then {1000 * per_token:.2f} ms per token ({1 / per_token:.1f} tokens/s)"
        print(f"  first token after {1000 * speed['ttft']:.1f} ms{each}")
        print(f"  {speed['output_rate']:.1f} output tokens/s, {speed['total_rate']:.1f} in all; "
              f"{speed['seconds']:.2f} s in {speed['steps']} steps\n")
    print(console.bold("Roofline", sys.stdout) + "  what has to be read and computed, and the least time for that here")
    lines = [("", "bytes", "GFLOP", "ms", "bandwidth", "peak", "least ms", "limited by"),
             *map(_roofline_cells, report["roofline"])]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *rest in lines:
        print("  ".join(["", first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]))


def _roofline_cells(phase: dict[str, Any]) -> tuple[str, ...]:
    return (
        phase["phase"], format_bytes(int(phase["bytes"])), f"{phase['flops'] / 1e9:,.2f}",
        f"{1000 * phase['seconds']:,.1f}", f"{100 * phase['of_bandwidth']:.1f} %", f"{100 * phase['of_peak']:.1f} %",
        f"{1000 * phase['bound']:,.1f}", phase["limited_by"])
