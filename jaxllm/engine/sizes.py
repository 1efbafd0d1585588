"""The sizes of an engine: what a caller asks for, and what is chosen of it for this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxllm.checks import check_bool, check_integer, check_real
from jaxllm.config import (
    MAX_BATCHED_TOKENS,
    MAX_BLOCK_SIZE,
    MAX_NUM_SEQS,
    MIN_BATCHED_TOKENS,
    EngineConfig,
    Policy,
    plan_memory,
    plan_swap,
)
from jaxllm.errors import ParameterError
from jaxllm.kv_cache import kv_spec
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model
from jaxllm.parallel import distributed
from jaxllm.parallel.agreement import agree_on, check_members, spans_processes
from jaxllm.parallel.partition import Partition
from jaxllm.parallel.pipeline import Pipeline, is_here, stage_spec, stages_of
from jaxllm.platform import free_device_memory, free_host_memory, resolve_dtype
from jaxllm.quantities import parse_bytes, parse_count
from jaxllm.sampling import LogitsProcessor, check_processors
from jaxllm.sampling_params import LogprobsMode
from jaxllm.speculative.config import read_speculative_config
from jaxllm.tokenization import Tokenizer
from pallas_kernels import implementations

CPU_DEFAULTS = {"max_num_seqs": 64, "max_num_batched_tokens": 512, "block_size": 32}
ACCELERATOR_DEFAULTS = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "block_size": 64}
SCALED_DTYPES = {
    "int8": jnp.int8, "int8_per_token_head": jnp.int8, "fp8": jnp.float8_e4m3fn, "fp8_e4m3": jnp.float8_e4m3fn,
    "fp8_per_token_head": jnp.float8_e4m3fn, "float8_e4m3fn": jnp.float8_e4m3fn}
"""What ``kv_cache_dtype`` calls a cache with a scale for each token and kv head."""
OLDEST_WITH_FLOAT8 = 8.9
"""Compute capability, where GPUs convert it."""

Replicas = Partition | Pipeline | Sequence[Partition | Pipeline] | None
"""Where one replica of a model is, or each of several; ``None``: one, on the default device."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineSizes:
    """What a caller may choose; ``None`` leaves it to the platform. See ``LLM`` for their meanings and their forms."""

    max_model_len: int | str | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    kv_cache_bytes: int | str | None = None
    kv_cache_memory_bytes: int | str | None = None
    kv_cache_dtype: Any = "auto"
    gpu_memory_utilization: float = 0.9
    swap_bytes: int = 0
    enable_prefix_caching: bool = True
    scheduling_policy: Policy = "fcfs"
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    seed: int | None = None
    overlap: bool = True
    deterministic: bool = False
    speculative_config: Any = "auto"
    logits_processors: Mapping[str, LogitsProcessor] | None = None

    def __post_init__(self) -> None:
        check_bool("deterministic", self.deterministic)
        # Before a model is looked for: whether it is on depends on the machine, whether it is sound does not.
        read_speculative_config(self.speculative_config, on_host=True)
        if self.kv_cache_bytes is not None and self.kv_cache_memory_bytes is not None:
            raise ParameterError("kv_cache_memory_bytes", self.kv_cache_memory_bytes,
                                 "kv_cache_bytes is the same: give one of them")

    @property
    def cache_bytes(self) -> int | None:
        """Bytes of the KV cache, under either name."""
        for name in ("kv_cache_bytes", "kv_cache_memory_bytes"):
            if getattr(self, name) is not None:
                return parse_bytes(name, getattr(self, name))
        return None


def choose_config(model: Model, sizes: EngineSizes, tokenizer: Tokenizer | None = None, *,
                  weights_in_place: bool = False, partition: Replicas = None) -> tuple[EngineConfig, KVSpec]:
    """Fix every size of an engine for this machine; raises before anything is allocated.

    tokenizer: knows which ids may be sampled; without one, all that the model has.
    weights_in_place: those of one replica are in memory already, and not part of what is free.
    partition: the devices, and what each has of the model, or of each replica of it; by default all of it is on the
        default device. The sizes are those of each replica, the pool's those of each stage of it; the spec that is
        returned is of all layers, on each device.
    """
    replicas = replicas_of(model, partition)
    stages = stages_of(replicas[0])
    sizes_of_stages = [stage.local.weight_bytes for stage in stages]
    vocab_size = model.config.vocab_size
    platform = jax.default_backend()
    on_host = platform == "cpu"
    defaults = CPU_DEFAULTS if on_host else ACCELERATOR_DEFAULTS
    chosen = {name: default if getattr(sizes, name) is None else getattr(sizes, name)
              for name, default in defaults.items()}
    check_integer("max_num_seqs", chosen["max_num_seqs"], 1, MAX_NUM_SEQS)
    check_integer("max_num_batched_tokens", chosen["max_num_batched_tokens"], MIN_BATCHED_TOKENS, MAX_BATCHED_TOKENS)
    check_integer("block_size", chosen["block_size"], 1, MAX_BLOCK_SIZE)
    chosen = {name: int(value) for name, value in chosen.items()}
    check_real("gpu_memory_utilization", sizes.gpu_memory_utilization, 0.0, 1.0, open_low=True)
    if sizes.deterministic and not on_host:
        for stage in stages:
            check_deterministic(stage, platform)
    length = _model_length(sizes.max_model_len)
    spec = cache_spec(stages[0].local, sizes.kv_cache_dtype, length)
    block_size = chosen["block_size"]
    specs = [stage_spec(spec, stage) for stage in stages]
    largest = max(specs, key=lambda each: each.block_bytes(block_size))
    block_bytes = [each.block_bytes(block_size) for each in specs]
    # As much as leaves each stage room for equally many blocks: in bytes of the stage whose blocks are largest.
    if on_host:  # its devices share its memory
        sharing, num_to_come = len(replicas) * stages[0].size, len(replicas) - weights_in_place
        free_host = free_host_memory() - num_to_come * stages[0].size * sum(sizes_of_stages)
        free = free_host * max(block_bytes) // (sharing * sum(block_bytes))
    else:
        free = min(
            (free_device_memory(device, sizes.gpu_memory_utilization) - weights * (number > 0 or not weights_in_place))
            * max(block_bytes) // each
            for number, replica in enumerate(replicas)
            for stage, weights, each in zip(stages_of(replica), sizes_of_stages, block_bytes, strict=True)
            for device in stage.local_devices)
    seed, shared = sizes.seed, _shared_by_processes(replicas)
    if shared:
        free, seed = min(distributed.exchange("free memory", free)), distributed.shared_seed(seed)
    max_model_len, num_blocks = plan_memory(
        model=model.config,
        spec=largest,
        block_size=block_size,
        max_num_seqs=chosen["max_num_seqs"],
        max_model_len=length,
        kv_cache_bytes=sizes.cache_bytes,
        free_bytes=free,
        weight_bytes=max(sizes_of_stages),
        on_host=on_host,
    )
    free_to_swap = free_host - sharing * num_blocks * sum(block_bytes) if on_host else free_host_memory()
    own = [replica for replica in replicas if is_here(replica)]
    num_swap_blocks = plan_swap(
        sizes.swap_bytes // len(own),
        sum(stage.block_bytes_here(each, block_size) for stage, each in zip(stages_of(own[0]), specs, strict=True)),
        free_to_swap // len(own))
    if shared:
        num_swap_blocks = min(distributed.exchange("blocks of swap_space", num_swap_blocks))
    config = EngineConfig(
        **chosen,
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        windows=spec.windows,
        num_swap_blocks=num_swap_blocks,
        vocab_size=vocab_size if tokenizer is None else min(tokenizer.vocab_size, vocab_size),
        unused_token_ids=() if tokenizer is None else tuple(
            sorted(token for token in tokenizer.unused_token_ids if token < vocab_size)),
        enable_prefix_caching=sizes.enable_prefix_caching,
        scheduling_policy=sizes.scheduling_policy,
        max_logprobs=sizes.max_logprobs,
        logprobs_mode=sizes.logprobs_mode,
        seed=seed,
        overlap=sizes.overlap,
        deterministic=sizes.deterministic and not on_host,
        speculation=read_speculative_config(sizes.speculative_config, on_host=on_host),
        logits_processors=check_processors({} if sizes.logits_processors is None else sizes.logits_processors,
                                           vocab_size, max_model_len),
        data_parallel_size=len(replicas),
        pipeline_parallel_size=len(stages),
    )
    if shared:
        agree_on(model, config)
    return config, spec


def _shared_by_processes(replicas: Sequence[Partition | Pipeline]) -> bool:
    """Whether other processes take part; ``ParameterError`` where their shares cannot be run."""
    if not spans_processes(replicas):
        return False
    check_members(replicas)
    return True


def replicas_of(model: Model, partition: Replicas) -> list[Partition | Pipeline]:
    """Where each replica is."""
    if partition is None:
        return [Partition(model)]
    return [partition] if isinstance(partition, Partition | Pipeline) else list(partition)


def check_deterministic(partition: Partition, platform: str) -> None:
    """Raise ParameterError where an accelerator has no kernels whose bits do not depend on the batch."""
    model = partition.whole
    missing = {
        f"GPUs, and CPUs, where it is always so, not on {platform}": platform != "gpu",
        "one device: sums over several are in an order of their own": partition.size > 1,
        f"models in bfloat16 or float16, not {model.dtype.name}": model.dtype not in (jnp.bfloat16, jnp.float16),
        "weights that are not quantized": bool(model.quantized),
        "attention without latents": model.config.latent is not None,
        "attention without biases by distance": model.config.alibi_slopes is not None,
        "heads of up to 256 numbers, a multiple of 16": model.config.head_dim % 16 != 0 or model.config.head_dim > 256,
        "attention without chunks": any(map(model.config.chunk_of, range(model.config.num_layers))),
    }
    for condition, is_missing in missing.items():
        if is_missing:
            raise ParameterError("deterministic", True, f"False here; True on {condition}")
    if "triton" not in implementations("matmul"):
        raise ParameterError("deterministic", True, "False without the packages of jaxllm[cuda13]: Triton is missing")


def _model_length(length: int | str | None) -> int | None:
    """``max_model_len`` as a number, or ``None`` where what fits is to be taken."""
    if length is None or length == "auto":
        return None
    number = parse_count("max_model_len", length, low=-1)
    return None if number == -1 else number


def cache_spec(model: Model, dtype: Any, max_model_len: int | None = None, *, capability: float | None = None
               ) -> KVSpec:
    """What the cache holds per token. dtype: "auto", the model's own, which the attention kernels ask for, "int8"
    or "fp8" (vLLM's "int8_per_token_head" and "fp8_per_token_head"). max_model_len: the longest sequence; the model's
    context by default. capability: the GPU's compute capability; by default that of the device that is here."""
    platform = jax.default_backend()
    if (kept := _scaled_dtype(dtype)) is not None:
        if capability is None:
            capability = getattr(jax.devices()[0], "compute_capability", None)
        if kept == jnp.float8_e4m3fn and capability is not None and float(capability) < OLDEST_WITH_FLOAT8:
            raise ParameterError("kv_cache_dtype", dtype, f"'auto' or 'int8': float8 needs a GPU of compute capability "
                                 f"{OLDEST_WITH_FLOAT8} or newer, this one has {capability}")
        return kv_spec(model.config, kept, max_model_len)
    refused = ParameterError("kv_cache_dtype", dtype, f"'auto', the model's dtype, which is {model.dtype.name!r}, "
                             "'int8' or 'fp8'")
    try:
        found = model.dtype if dtype == "auto" else resolve_dtype(dtype, platform, "kv_cache_dtype")
    except ParameterError:
        raise refused from None
    if found != model.dtype:
        raise refused
    return kv_spec(model.config, model.dtype, max_model_len)


def _scaled_dtype(dtype: Any) -> Any:
    """The dtype of a cache whose numbers have scales, or ``None``."""
    if isinstance(dtype, str):
        return SCALED_DTYPES.get(dtype)
    try:
        return next((kept for kept in SCALED_DTYPES.values() if jnp.dtype(dtype) == kept), None)
    except TypeError:
        return None
