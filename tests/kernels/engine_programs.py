"""A whole engine step of Llama 3 8B's shape, for one GPU and for eight that share it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from jaxllm.engine.sizes import EngineSizes, choose_config
from jaxllm.models.config import DecoderConfig
from jaxllm.models.model import build_model
from jaxllm.parallel.partition import Partition
from jaxllm.runner.functions import StepFunctions
from jaxllm.runner.keys import Key, layer_chunks
from jaxllm.runner.programs import Programs
from jaxllm.runner.signatures import Signatures
from jaxllm.sampling import Variant
from pallas_kernels import aot

TOKENS = 256
LAYERS = 2
DEVICES = 8
CONFIG = DecoderConfig(
    family="llama", vocab_size=128_256, hidden_size=4096, num_layers=LAYERS, num_heads=32, num_kv_heads=8, head_dim=128,
    intermediate_size=14_336, max_position_embeddings=8192, norm_eps=1e-5)
PROGRAMS = (Key("begin", TOKENS), Key("layers", TOKENS, 0), Key("end", TOKENS), Key("sample", 64, Variant.GREEDY),
            Key("sample", 64, Variant.FULL))


def functions(deterministic: bool = False) -> StepFunctions:
    model = build_model(CONFIG, jnp.dtype("bfloat16"))
    sizes = EngineSizes(max_num_seqs=64, max_model_len=8192, max_num_batched_tokens=TOKENS, block_size=64)
    config, spec = choose_config(model, sizes)
    config = dataclasses.replace(config, deterministic=deterministic)  # which CPUs, as the one here, need not be told
    return StepFunctions(model, model.config.vocab_size, spec, config, layer_chunks(model, spec, LAYERS))


def programs_over(gpu: str, devices: int) -> Programs:
    """Of a step that devices share, each with its heads and its part of the feed-forward width."""
    model = build_model(CONFIG, jnp.dtype("bfloat16"))
    sizes = EngineSizes(max_num_seqs=64, max_model_len=8192, max_num_batched_tokens=TOKENS, block_size=64,
                        kv_cache_bytes=1 << 30)
    partition = Partition(model, aot.mesh_of(gpu, (devices,), ("tensor",)))
    config, spec = choose_config(model, sizes, partition=partition)
    return Programs(model, spec, config, LAYERS, partition=partition)


def cases(gpu: str) -> Iterator[aot.Case]:
    """For one GPU."""
    for deterministic in (False, True):
        made = functions(deterministic)
        signatures = Signatures(made, Partition(made.model))
        for key in (PROGRAMS if not deterministic else PROGRAMS[1:4:2]):
            function, donated = made.of(key)
            name = f"{key}, deterministic" if deterministic else str(key)
            yield aot.Case(name, jax.jit(function, donate_argnums=donated), signatures.of(key))


def cases_over_devices(gpu: str) -> Iterator[aot.Case]:
    """For eight, inside ``shard_map``, with what collectives come to between them."""
    over = programs_over(gpu, DEVICES)
    signatures = Signatures(over._functions, over.partition)
    for key in PROGRAMS:
        function, donated = over._functions.of(key)
        yield aot.Case(str(key),
                       jax.jit(signatures.over_devices(key, function), donate_argnums=donated), signatures.of(key))
