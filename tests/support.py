"""Small models and engines for tests."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

from jaxllm.engine.build import build_engine
from jaxllm.engine.sizes import EngineSizes
from jaxllm.models.config import DecoderConfig
from jaxllm.models.model import build_model
from jaxllm.sampling_params import SamplingParams

TINY = {
    "family": "llama", "vocab_size": 199, "hidden_size": 48, "num_layers": 2, "num_heads": 6, "num_kv_heads": 2,
    "head_dim": 8, "intermediate_size": 80, "max_position_embeddings": 512, "tie_word_embeddings": True,
}
EOS = 7


@functools.cache
def tiny_model(dtype="float32", seed=0, **changes):
    """A random model of two layers with odd sizes, and its parameters."""
    model = build_model(DecoderConfig(**{**TINY, **changes}), jnp.dtype(dtype))
    return model, model.init(seed, scale=0.2)


def tiny_engine(dtype="float32", *, changes=None, tokenizer=None, **sizes):
    """An engine on the tiny model, with room for several short requests unless told otherwise."""
    model, params = tiny_model(dtype, **(changes or {}))
    chosen = {"max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": 8,
              "kv_cache_bytes": 1 << 20, **sizes}
    return build_engine(model, lambda: params, EngineSizes(**chosen), tokenizer=tokenizer, eos_token_ids=[EOS])


def pool_bytes(blocks, block_size=8, dtype="float32"):
    """``kv_cache_bytes`` for that many usable blocks of the tiny model."""
    return pool_bytes_of(blocks, block_size, layers=TINY["num_layers"], kv_heads=TINY["num_kv_heads"],
                         head_dim=TINY["head_dim"], dtype=dtype)


def pool_bytes_of(blocks, block_size, *, layers, kv_heads, head_dim, dtype):
    """``kv_cache_bytes`` for that many usable blocks of a model."""
    head_bytes = head_dim * jnp.dtype(dtype).itemsize + (4 if jnp.dtype(dtype) == jnp.int8 else 0)
    return (blocks + 1) * block_size * 2 * layers * kv_heads * head_bytes


def prompts(count, seed=0, low=1, high=60):
    """Random prompts of random lengths."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(low, high, count)
    return [generator.integers(8, TINY["vocab_size"], length).tolist() for length in lengths]


def by_policy(engine, params):
    """The parameters without their priority, where the engine refuses one."""
    as_given = engine.config.scheduling_policy == "priority" or not isinstance(params, SamplingParams)
    return params if as_given else params.replace(priority=0)


def check_idle(engine):
    """Whether nothing runs, waits or holds a block."""
    engine.check_integrity()
    assert not engine.has_unfinished()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used, stats.swap_blocks_used) == (0, 0, 0, 0)


def run(engine, requests):
    """Add all (prompt, params) and run them to the end; finished outputs in order."""
    ids = [engine.add_request(prompt, by_policy(engine, params)) for prompt, params in requests]
    done = {}
    while engine.has_unfinished():
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output
        engine.check_integrity()
    return [done[request_id] for request_id in ids]


def greedy(max_tokens=16, **changes):
    """Greedy sampling that never ends early."""
    return SamplingParams(**{"temperature": 0.0, "max_tokens": max_tokens, "ignore_eos": True, **changes})


def bits(output):
    """Everything numeric of an output: to be compared with ``==``, to the bit."""
    return (
        [(sample.token_ids, sample.logprobs, sample.finish_reason) for sample in output.outputs],
        output.prompt_logprobs,
        output.error,
    )
