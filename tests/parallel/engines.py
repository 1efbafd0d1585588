"""Engines over virtual devices, of one tiny model with an odd number of layers, made once: compiling takes the time."""

from __future__ import annotations

import functools

from support import by_policy, check_idle, pool_bytes_of, tiny_model

from jaxllm.engine.build import EngineSizes, build_engine
from jaxllm.parallel.mesh import chosen_mesh
from jaxllm.parallel.pipeline import replica_partitions

LAYERS = 5
SIZES = {"max_model_len": 96, "max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 8,
         "speculative_config": None, "seed": 5}
POOL = pool_bytes_of(20, 8, layers=LAYERS, kv_heads=2, head_dim=8, dtype="float32")
"""Bytes of the cache where one device has it."""


def model_and_params():
    """The model, and its random parameters."""
    return tiny_model(num_layers=LAYERS)


@functools.cache
def engine_over(data=1, pipe=1, tensor=1, **sizes):
    """An engine with the same few blocks, whatever the devices."""
    model, params = model_and_params()
    partitions = replica_partitions(model, chosen_mesh(
        data_parallel_size=data, pipeline_parallel_size=pipe, tensor_parallel_size=tensor))
    layers = LAYERS if pipe == 1 else max(map(len, partitions[0].layers))
    pool = POOL * layers // LAYERS // tensor
    return build_engine(model, lambda: params, EngineSizes(**{"kv_cache_bytes": pool, **SIZES, **sizes}),
                        partition=partitions, eos_token_ids=[7])


def all_at_once(engine, requests):
    """``support.run`` without a check after every step."""
    names = [engine.add_request(prompt, by_policy(engine, params)) for prompt, params in requests]
    done = {}
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step() if output.finished})
    check_idle(engine)
    return [done[name] for name in names]
