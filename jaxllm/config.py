"""``EngineConfig``: the sizes of an engine, chosen once at start, and how they are chosen."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from jaxllm.checks import check_integer
from jaxllm.engine.block_groups import BlockGroups
from jaxllm.engine.limits import Policy
from jaxllm.errors import CapacityError, ParameterError
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.config import DecoderConfig
from jaxllm.sampling_params import LOGPROBS_MODES, MAX_SEED, LogprobsMode
from jaxllm.speculative.config import SpeculativeConfig

logger = logging.getLogger("jaxllm")

MIN_BATCHED_TOKENS = 16
MAX_BATCHED_TOKENS = 1 << 20
MAX_NUM_SEQS = 1 << 16
MAX_BLOCK_SIZE = 1 << 12
CPU_POOL_FLOOR = 1 << 30


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The sizes of an engine, and how it treats its requests.

    max_num_seqs: samples that run at once. max_num_batched_tokens: tokens computed per step. max_model_len: the most
    tokens of a prompt and its output. block_size: slots per block. num_blocks: physical blocks, the null block
    included. windows: of each group of layers that has block tables of its own (``KVSpec.groups``). num_swap_blocks:
    host blocks for preempted sequences. vocab_size: ids that exist (the tokenizer's; the model's may be padded beyond).
    unused_token_ids: those among them that stand for nothing and are never sampled. logprobs_mode: of requests that
    name none. seed: what the seeds of requests that bring none derive from, with the order of their arrival; ``None``
    draws each from the operating system. overlap: plan and dispatch a step while the one before runs. speculation:
    guess tokens ahead where that pays; ``None`` is off. logits_processors: names and JAX functions, compiled into the
    sampler (``LogitsProcessor``). data_parallel_size: replicas of the model, each of which has all these sizes to
    itself. pipeline_parallel_size: stages that the layers are cut into, and steps that are on their way through them at
    once, which share ``max_num_batched_tokens``. deterministic: take kernels whose bits do not depend on the batch
    where, as on GPUs, those of the platform's defaults do.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_blocks: int
    vocab_size: int
    windows: tuple[int | None, ...] = (None,)
    num_swap_blocks: int = 0
    enable_prefix_caching: bool = True
    scheduling_policy: Policy = "fcfs"
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    seed: int | None = None
    overlap: bool = True
    speculation: SpeculativeConfig | None = None
    unused_token_ids: tuple[int, ...] = ()
    logits_processors: tuple[tuple[str, Any], ...] = ()
    data_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    deterministic: bool = False

    def __post_init__(self) -> None:
        check_integer("max_num_seqs", self.max_num_seqs, 1, MAX_NUM_SEQS)
        check_integer("max_num_batched_tokens", self.max_num_batched_tokens, MIN_BATCHED_TOKENS, MAX_BATCHED_TOKENS)
        check_integer("max_model_len", self.max_model_len, 2)
        check_integer("block_size", self.block_size, 1, MAX_BLOCK_SIZE)
        check_integer("num_swap_blocks", self.num_swap_blocks, 0)
        check_integer("max_logprobs", self.max_logprobs, -1)
        check_integer("data_parallel_size", self.data_parallel_size, 1)
        check_integer("pipeline_parallel_size", self.pipeline_parallel_size, 1)
        if self.logprobs_mode not in LOGPROBS_MODES:
            raise ParameterError("logprobs_mode", self.logprobs_mode, "one of " + ", ".join(map(repr, LOGPROBS_MODES)))
        if self.seed is not None:
            check_integer("seed", self.seed, 0, MAX_SEED)
        if not isinstance(self.enable_prefix_caching, bool):
            raise ParameterError("enable_prefix_caching", self.enable_prefix_caching, "True or False")
        if not isinstance(self.overlap, bool):
            raise ParameterError("overlap", self.overlap, "True or False")
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ParameterError("scheduling_policy", self.scheduling_policy, "'fcfs' or 'priority'")

    @property
    def processor_names(self) -> tuple[str, ...]:
        """Of the logits processors, in the order in which they apply."""
        return tuple(name for name, _ in self.logits_processors)

    @property
    def step_budget(self) -> int:
        """The most tokens of one step."""
        return -(-self.max_num_batched_tokens // self.pipeline_parallel_size)

    @property
    def blocks_per_sequence(self) -> int:
        """Columns of the block table: blocks that a sequence of full length takes."""
        return -(-self.max_model_len // self.block_size)

    @property
    def token_capacity(self) -> int:
        """Tokens whose keys and values fit in a replica's pool, in sequences that no window is shorter than."""
        return (self.num_blocks - 1) // len(self.windows) * self.block_size


def _round_down(number: int) -> int:
    """Two significant bits of a number. Free memory is never twice the same, but shapes that derive from it should be:
    each new one has to be compiled."""
    return number >> (unit := max(number.bit_length() - 2, 0)) << unit


def plan_swap(swap_bytes: int, block_bytes: int, free_bytes: int) -> int:
    """The number of host blocks that ``swap_bytes`` of the ``free_bytes`` of host memory hold; 0 turns swapping off."""
    check_integer("swap_space", swap_bytes, 0)
    if 0 < swap_bytes < block_bytes:
        raise ParameterError("swap_space", swap_bytes, f"0, or at least the {block_bytes:,} bytes of one block")
    if swap_bytes > free_bytes:
        raise CapacityError(f"swap_space={swap_bytes:,} bytes is more than the {max(free_bytes, 0):,} bytes of host "
                            "memory that are free beside weights and KV cache: lower swap_space")
    return swap_bytes // block_bytes


def plan_memory(
    *,
    model: DecoderConfig,
    spec: KVSpec,
    block_size: int,
    max_num_seqs: int,
    max_model_len: int | None,
    kv_cache_bytes: int | None,
    free_bytes: int,
    weight_bytes: int,
    on_host: bool,
) -> tuple[int, int]:
    """Choose ``(max_model_len, num_blocks)``.

    The pool takes ``kv_cache_bytes`` when given. Otherwise, on an accelerator, all of ``free_bytes``; on the host the
    smallest of what ``max_num_seqs`` requests of full length need, a quarter of the free memory (rounded down to two
    bits), and the larger of 1 GiB and the weights' bytes (the size is in the programs' shapes: one that followed the
    free memory would have them compiled anew). Without ``max_model_len`` the model's own is taken, or what fits if that
    is less (a warning says so). A ``max_model_len`` that does not fit raises ``CapacityError`` with the largest that
    would.
    """
    if max_model_len is not None:
        check_integer("max_model_len", max_model_len, 2)
        if max_model_len > model.max_position_embeddings:
            raise ParameterError("max_model_len", max_model_len,
                                 f"at most {model.max_position_embeddings}, the model's context")
    if kv_cache_bytes is not None:
        check_integer("kv_cache_bytes", kv_cache_bytes, 1)
        if kv_cache_bytes > free_bytes:
            raise CapacityError(f"kv_cache_bytes={kv_cache_bytes:,} is more than the {max(free_bytes, 0):,} bytes that "
                                "are free beside the weights: lower kv_cache_bytes")
    wanted_len = max_model_len or model.max_position_embeddings
    groups = BlockGroups(spec.windows, block_size)
    block_bytes = spec.block_bytes(block_size)
    blocks_each = groups.blocks_for(wanted_len)
    useful = (max_num_seqs * blocks_each + 1) * block_bytes
    if kv_cache_bytes is not None:
        budget = kv_cache_bytes
    elif on_host:
        share = _round_down(free_bytes // 4)
        budget = min(useful, share, max(CPU_POOL_FLOOR, weight_bytes))
        budget = max(budget, min((blocks_each + 1) * block_bytes, share))
    else:
        budget = min(useful, free_bytes)
    num_blocks = max(budget, 0) // block_bytes
    fits = groups.longest(num_blocks - 1, wanted_len)
    if fits >= wanted_len:
        return wanted_len, num_blocks
    if fits < 2 or max_model_len is not None:
        knob = "kv_cache_bytes" if kv_cache_bytes is not None or on_host else "gpu_memory_utilization"
        raise CapacityError(
            f"max_model_len={wanted_len} needs {(blocks_each + 1) * block_bytes:,} bytes of KV cache, but "
            f"{max(budget, 0):,} are available: the largest max_model_len that fits is {fits}; lower max_model_len "
            f"or raise {knob}"
        )
    logger.warning(
        "max_model_len: the model allows %d tokens, the KV cache holds %d; using %d (set max_model_len or "
        "kv_cache_bytes to choose)", wanted_len, fits, fits,
    )
    return fits, num_blocks
