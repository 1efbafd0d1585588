"""``jaxllm info``: what a model is and what would fit, without loading it."""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from jaxllm.cli import console
from jaxllm.cli.options import Debug, EngineOptions, ModelOptions, format_bytes


def info(
    model: ModelOptions,
    engine: EngineOptions,
    name: Annotated[str | None, typer.Argument(
        metavar="MODEL", show_default=False,
        help="Hub id, folder, .gguf file or packaged name; by default the packaged model.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    debug: Debug = False,
) -> None:
    """Describe a model and what would fit on this machine.

    Headers are read; weights are neither loaded nor, for hub ids, downloaded. Exit code 1 if the model cannot be run.
    """
    console.set_up(quiet=False, debug=debug)
    if name is not None and model.model is not None:
        raise typer.BadParameter("the model is given twice", param_hint="--model")

    from jaxllm.cli.report import describe
    from jaxllm.cli.startup import uncollected

    # What would be warned about at a start is in the report.
    logging.getLogger("jaxllm").setLevel(logging.DEBUG if debug else logging.ERROR)
    with uncollected():
        report, error = describe(dataclasses.replace(model, model=name or model.model), engine)
    if as_json:
        report["error"] = None if error is None else {"type": type(error).__name__, "message": str(error)}
        print(json.dumps(report, ensure_ascii=False, indent=2))
    else:
        _print(report)
    if error is not None:
        if debug:
            raise error
        console.error(str(error))
        raise typer.Exit(1)


def _print(report: dict[str, Any]) -> None:
    sections = [(title, list(lines)) for title, lines in _sections(report)]
    width = max(len(label) for _, lines in sections for label, _ in lines)
    for number, (title, lines) in enumerate(sections):
        print(("\n" if number else "") + console.bold(title, sys.stdout))
        for label, value in lines:
            print(f"  {label:<{width}}  {value}")


def _sections(report: dict[str, Any]) -> Iterator[tuple[str, Iterator[tuple[str, str]]]]:
    yield report["model"].get("name") or report["model"]["path"], _model(report)
    if "tokenizer" in report:
        yield "Tokenizer", _tokenizer(report["tokenizer"])
    if "machine" in report:
        yield "This machine", _machine(report["machine"])
    # An option that is refused ends the description before these.
    if "fits" in report:
        yield "Memory", _memory(report)
        yield "A decoding step", _step(report)
        yield "Compiled programs", _compilation(report["compilation"])


def _model(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    model, stored = report["model"], report["stored"]
    yield "path", model["path"]
    names = model.get("architectures") or [model.get("architecture") or "not named"]
    family = f" (family {model['family']})" if "family" in model else ""
    yield "architecture", ", ".join(names) + family
    if "parameters" in model:
        tied = ", the head tied to the embedding" if model["tie_word_embeddings"] else ""
        yield "parameters", f"{model['parameters']:,}{tied}"
    if "num_layers" in model:
        yield "layers", f"{model['num_layers']}, width {model['hidden_size']}, MLP {model['intermediate_size']}"
        if experts := model["experts"]:
            yield "experts", (f"{experts['experts_per_token']} of {experts['num_experts']} for each token in "
                              f"{experts['layers']} layers, MLP {experts['expert_size']}")
        yield "attention", f"{model['num_heads']} heads, {model['num_kv_heads']} KV heads, head dim {model['head_dim']}"
        window = (f", sliding window {model['sliding_window']:,} in {model['window_layers']} layers"
                  if model["window_layers"] else "")
        yield "context", f"{model['max_position_embeddings']:,} tokens{window}"
        yield "vocabulary", f"{model['vocab_size']:,}"
    if not stored["tensors"]:
        yield "stored", "not downloaded"
        return
    types = ", ".join(f"{kind} {format_bytes(entry['bytes'])}" for kind, entry in stored["types"].items())
    yield "stored", f"{format_bytes(stored['bytes'])} in {stored['tensors']} tensors: {types}"


def _tokenizer(tokenizer: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "kind", f"{tokenizer['kind']}, {tokenizer['vocab_size']:,} tokens"
    yield "chat template", "yes" if tokenizer["chat_template"] else "no"
    yield "ends at", ", ".join(f"{number} {text!r}" for number, text in tokenizer["end_token_ids"].items()) or "nothing"


def _machine(machine: dict[str, Any]) -> Iterator[tuple[str, str]]:
    count = f", {machine['devices']} devices" if machine["devices"] > 1 else ""
    yield "platform", f"{machine['platform']} ({machine['device']}{count})"
    yield "free memory", format_bytes(machine["free_bytes"])
    if "kernels" in machine:
        yield "kernels", ", ".join(f"{operation}: {name}" for operation, name in machine["kernels"].items())
    if machine["platform"] == "cpu":
        native = machine["native_kernels"]
        yield "native kernels", native.get("instruction_set") or f"none: {native['unavailable']}"


def _memory(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    running, fits = report["running"], report["fits"]
    why = ", the default here" if running["dtype_chosen"] else ""
    if running["quantization"] is None:
        yield "weights", f"{format_bytes(running['weight_bytes'])} in {running['dtype']}{why}"
    else:
        kinds = ", ".join(f"{kind} {format_bytes(nbytes)}" for kind, nbytes in running["kinds"].items())
        yield "weights", f"{format_bytes(running['weight_bytes'])}: {kinds}; computed with in {running['dtype']}{why}"
    each = ""
    if "devices" in running:
        each = f" on each of {running['devices']} devices"
        parts = [f"{running[name]} {name}" for name in ("replicas", "stages") if running[name] > 1]
        yield "devices", f"{running['devices']}" + (f": {', '.join(parts)}" if parts else "")
        if "devices_that_share_experts" in running:
            sharing = running["devices_that_share_experts"]
            yield "experts of a layer", f"dealt out over {sharing} devices" if sharing > 1 else "all on one device"
        yield "weights of a device", format_bytes(running["weight_bytes_per_device"])
    yield "KV cache per token", f"{format_bytes(running['kv_bytes_per_token'])} in {running['kv_cache_dtype']}{each}"
    yield "KV cache, full context", format_bytes(running["kv_bytes_full_context"])
    if "error" in fits:
        yield "fits", f"no: {fits['error']}"
        return
    yield "KV cache by default", (f"{format_bytes(fits['kv_cache_bytes'])}: {fits['kv_tokens']:,} tokens in "
                                  f"{fits['num_blocks'] - 1:,} blocks of {fits['block_size']}")
    yield "longest request", f"{fits['max_model_len']:,} tokens"
    yield "at once", f"{fits['max_num_seqs']} samples, {fits['max_num_batched_tokens']} tokens a step"


def _step(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    step = report["step"]
    experts = " (of experts, those that one sequence takes)" if report["model"]["experts"] else ""
    yield "reads", (f"{format_bytes(step['weight_bytes'])} of weights{experts}, and for each sequence "
                    f"{format_bytes(report['running']['kv_bytes_per_token'])} per token of its context")
    yield "computes", (f"{step['flops_per_token'] / 1e9:.3g} GFLOP for each sequence, and "
                       f"{step['flops_per_context_token'] / 1e3:.3g} kFLOP per token of its context")


def _compilation(compilation: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if "programs" in compilation:
        yield "programs", compilation["programs"]
    cache = compilation["cache"]
    if cache is None:
        of_jax = compilation["cache_of_jax"]
        yield "cache", "off" if of_jax is None else f"JAX's own, {of_jax}"
        return
    sizes = f"{format_bytes(cache['bytes'])} of at most {format_bytes(cache['limit'])}"
    yield "cache", f"{cache['path']}: {cache['files']} files, {sizes}"
