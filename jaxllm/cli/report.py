"""What there is to say about a model, as plain data: nothing is loaded or allocated."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxllm.cli.options import EngineOptions, ModelOptions
from jaxllm.errors import CapacityError, JaxLLMError, UnsupportedModelError

if TYPE_CHECKING:
    from jaxllm.kv_cache import KVSpec
    from jaxllm.models.model import Model
    from jaxllm.tokenization import Tokenizer
    from jaxllm.weights import ModelSource

Report = dict[str, Any]


def describe(options: ModelOptions, engine: EngineOptions) -> tuple[Report, JaxLLMError | None]:
    """What is known of a model, by section, and the error that ended the inquiry, if one did.

    Raises where not even a checkpoint is found.
    """
    from jaxllm.weights import default_model, resolve

    name = options.model or default_model()
    try:
        source = resolve(name, options.revision, download_weights=False)
    except UnsupportedModelError as error:
        report = _unsupported_gguf(Path(name).expanduser())
        if report is None:
            raise
        return report, error
    report = {"model": {"name": source.name, "path": str(source.path),
                        "architectures": list(source.config.get("architectures") or [])},
              "stored": _stored(source)}
    tokenizer, problem = _tokenizer(source, options)
    try:
        _describe_model(report, source, tokenizer, options, engine)
    except JaxLLMError as error:
        return report, error
    return report, problem


def _unsupported_gguf(path: Path) -> Report | None:
    """What a GGUF file says of itself where its architecture is unknown; ``None`` if it says nothing."""
    from jaxllm.weights.gguf_header import read_header

    if not path.is_file():
        return None
    try:
        header = read_header(path)
    except JaxLLMError:
        return None
    stored = [(tensor.kind.name, tensor.nbytes) for tensor in header.tensors]
    names = {"name": header.metadata.get("general.name"), "architecture": header.metadata.get("general.architecture")}
    return {"model": {"path": str(path), **{key: value for key, value in names.items() if value is not None}},
            "stored": _totals(stored)}


def _stored(source: ModelSource) -> Report:
    return _totals([(tensor.dtype, tensor.nbytes) for tensor in source.tensors.values()])


def _totals(tensors: list[tuple[str, int]]) -> Report:
    types: dict[str, dict[str, int]] = {}
    for kind, nbytes in tensors:
        entry = types.setdefault(kind, {"tensors": 0, "bytes": 0})
        entry["tensors"] += 1
        entry["bytes"] += nbytes
    largest_first = dict(sorted(types.items(), key=lambda item: -item[1]["bytes"]))
    return {"tensors": len(tensors), "bytes": sum(nbytes for _, nbytes in tensors), "types": largest_first}


def _tokenizer(source: ModelSource, options: ModelOptions) -> tuple[Tokenizer | None, JaxLLMError | None]:
    from jaxllm.tokenization.loading import load_tokenizer
    from jaxllm.weights import GGUFSource, resolve

    try:
        of = source if options.tokenizer is None else resolve(options.tokenizer, download_weights=False)
        return load_tokenizer(of.metadata if isinstance(of, GGUFSource) else of.path), None
    except JaxLLMError as error:
        return None, error


def _describe_model(report: Report, source: ModelSource, tokenizer: Tokenizer | None, options: ModelOptions,
                    engine: EngineOptions) -> None:
    """Add the sections that need a supported architecture; raises at the first thing that fails."""
    from jaxllm.generation_config import end_token_ids
    from jaxllm.loading import open_model, parts_of

    if tokenizer is not None:
        report["tokenizer"] = {
            "kind": type(tokenizer.backend.model).__name__,
            "vocab_size": tokenizer.vocab_size,
            "chat_template": tokenizer.chat_template is not None,
            "bos_token_id": tokenizer.bos_token_id,
            "end_token_ids": {token: tokenizer.token_text(token)
                              for token in sorted(end_token_ids(source, tokenizer))},
        }
    family, config, _ = parts_of(source)
    report["model"] |= {"family": family.name, **_architecture(config)}
    opened = open_model(source, options.dtype, quantization=options.quantization, has_weights=bool(source.tensors))
    model = opened.model
    report["model"]["parameters"] = model.num_parameters
    report["running"] = {"dtype": model.dtype.name, "dtype_chosen": options.dtype == "auto",
                         "weight_bytes": model.weight_bytes, "quantization": opened.quantization,
                         "kinds": _kinds(model)}
    _describe_engine(report, model, tokenizer, engine)


def _kinds(model: Model) -> dict[str, int]:
    """Bytes of the parameters by how they are kept, the most first."""
    found: dict[str, int] = {}
    for spec in model.specs.values():
        found[spec.kinds] = found.get(spec.kinds, 0) + spec.nbytes
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _architecture(config: Any) -> Report:
    names = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "vocab_size",
             "max_position_embeddings", "sliding_window", "tie_word_embeddings")
    layers = sum(config.window_of(layer) is not None for layer in range(config.num_layers))
    experts = None if config.moe is None else {
        "num_experts": config.moe.num_experts, "experts_per_token": config.moe.experts_per_token,
        "expert_size": config.moe.expert_size, "layers": config.num_layers - len(config.moe.dense_layers)}
    return {name: getattr(config, name) for name in names} | {"window_layers": layers, "experts": experts}


def _describe_engine(report: Report, model: Model, tokenizer: Tokenizer | None, engine: EngineOptions) -> None:
    import jax

    from jaxllm.bench.roofline import ModelCosts
    from jaxllm.engine.build import layers_per_program
    from jaxllm.engine.sizes import EngineSizes, cache_spec, choose_config
    from jaxllm.parallel.partition import Partition
    from jaxllm.parallel.pipeline import stage_spec, stages_of
    from jaxllm.platform import free_device_memory, free_host_memory
    from jaxllm.program_cache.entries import Entries
    from jaxllm.program_cache.folder import cache_bytes, cache_folder, folder_of_jax
    from jaxllm.runner.programs import Programs

    replicas = engine.replicas(model)
    stages = stages_of(replicas[0])
    # Of devices that share every layer, as those of a stage share some.
    partition = Partition(model, stages[0].mesh, engine.enable_expert_parallel)
    if (devices := len(replicas) * sum(stage.size for stage in stages)) > 1:
        report["running"] |= {"devices": devices, "replicas": len(replicas), "stages": len(stages),
                              "weight_bytes_per_device": max(stage.local.weight_bytes for stage in stages)}
        if engine.enable_expert_parallel and model.config.moe is not None:
            owner = stages[0].owner
            report["running"]["devices_that_share_experts"] = owner.size
    device, platform = jax.devices()[0], jax.default_backend()
    free = free_host_memory() if platform == "cpu" else free_device_memory(device, engine.gpu_memory_utilization)
    report["machine"] = {
        "platform": platform, "device": device.device_kind, "devices": jax.device_count(), "free_bytes": free,
        "native_kernels": _native_kernels(),
    }
    spec = cache_spec(partition.local, engine.kv_cache_dtype)
    specs = [stage_spec(spec, stage) for stage in stages]
    kept = max(specs, key=lambda each: each.bytes_per_token)
    report["machine"]["kernels"] = kernels_of(partition.local, spec)
    report["running"] |= {
        "kv_cache_dtype": spec.entries["k"].dtype_name,
        "kv_bytes_per_token": kept.bytes_per_token,
        "kv_bytes_full_context": kept.context_bytes(model.config.max_position_embeddings),
    }
    costs = ModelCosts.of(partition.local, spec)
    report["step"] = {
        "weight_bytes": costs.layer_bytes + costs.head_bytes, "flops_per_token": costs.layer_flops + costs.head_flops,
        "flops_per_context_token": model.config.num_layers * costs.attention_flops,
    }
    try:
        config, _ = choose_config(model, EngineSizes(**engine.sizes()), tokenizer, partition=replicas)
    except CapacityError as error:
        report["fits"] = {"error": str(error)}
    else:
        report["fits"] = {
            "max_model_len": config.max_model_len, "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens, "block_size": config.block_size,
            "num_blocks": config.num_blocks, "kv_tokens": config.token_capacity,
            "kv_cache_bytes": config.num_blocks * max(each.block_bytes(config.block_size) for each in specs),
        }
        if len(stages) == 1:
            report["compilation"] = {"programs": Programs(
                model, spec, config, layers_per_program(), partition=partition).formula()}
    folder, limit = cache_folder(), cache_bytes()
    report.setdefault("compilation", {})["cache"] = None if folder is None else {
        "path": str(folder), **dataclasses.asdict(Entries(folder, limit).contents()), "limit": limit}
    report["compilation"]["cache_of_jax"] = folder_of_jax()


def kernels_of(model: Model, spec: KVSpec) -> dict[str, str]:
    """The implementation of each operation that serves this model, in its dtype, and its cache."""
    import jax
    import jax.numpy as jnp

    from pallas_kernels import registry

    config, array = model.config, jax.ShapeDtypeStruct
    weight = array((config.hidden_size, config.hidden_size), model.dtype)
    query = array((8, config.num_heads, config.head_dim), model.dtype)
    logits = array((8, config.vocab_size), jnp.float32)
    key = array((8, config.num_kv_heads, config.head_dim), model.dtype)
    pools = {f"{name}_pool": entry.abstract(1, 1) for name, entry in spec.entries.items()}
    pools.setdefault("v_pool", pools["k_pool"])  # latents, which are both
    operands: dict[str, dict[str, Any]] = {
        "matmul": {"x": weight, "weight": weight, "out_dtype": model.dtype},
        "grouped_matmul": {"x": weight, "weights": weight, "scales": None, "out_dtype": model.dtype},
        "gated_matmul": {"x": weight, "weight": weight, "activation": config.activation},
        "rms_norm": {"x": weight, "weight": array((config.hidden_size,), model.dtype), "epsilon": 0.0, "offset": 0.0},
        "paged_attention": {"q": query, **pools, "alibi_slopes": config.alibi_slopes},
        "rope_kv_write": {"qkv": query, **pools}, "kv_write": {"k": key, "v": key, **pools}}
    blocks = {"x": weight, "weight": weight, "kind": "I8", "scale": None}
    operands |= {"quantized_matmul": {**blocks, "out_dtype": model.dtype},
                 "quantized_gated_matmul": {**blocks, "activation": config.activation},
                 "quantized_grouped_matmul": {**blocks, "out_dtype": model.dtype}}
    return {operation: registry.choose(operation, operands=operands.get(operation, {"logits": logits})
                                       ).implementation.name for operation in registry.operations()}


def _native_kernels() -> Report:
    """The instruction set that native kernels use, or why there are none."""
    from pallas_kernels import cpu

    reason = cpu.unavailable()
    return {"instruction_set": cpu.instruction_set()} if reason is None else {"unavailable": reason}
