"""Every way to use up to eight devices gives what one device gives, and each has its share of weights and cache."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest
from parallel.engines import all_at_once
from support import greedy, prompts

from jaxllm import SamplingParams
from jaxllm.engine.build import build_engine
from jaxllm.engine.sizes import EngineSizes
from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.model import build_model
from jaxllm.parallel.mesh import chosen_mesh
from jaxllm.parallel.pipeline import replica_partitions

LAYERS, HEADS, BLOCK, POOL = 4, 4, 8, 1 << 17
CONFIG = {"family": "none", "vocab_size": 199, "hidden_size": 32, "num_layers": LAYERS, "num_heads": HEADS,
          "num_kv_heads": HEADS, "head_dim": 8, "intermediate_size": 32, "max_position_embeddings": 64}
EXPERTS = MoEConfig(num_experts=8, experts_per_token=2, expert_size=16, normalize=True)
MODELS = {"dense": {}, "moe": {"moe": EXPERTS}, "moe of 8 heads": {"moe": EXPERTS, "num_heads": 8, "num_kv_heads": 8}}
SHAPES = [shape for shape in itertools.product((1, 2, 4), repeat=3) if shape[0] * shape[1] * shape[2] <= 8]
"""Sizes of data, pipe and tensor."""


def spreads(shape):
    """Whether experts that are dealt out are so over replicas too."""
    data, pipe, _ = shape
    return data > 1 and pipe == 1


CASES = [(name, shape, by_expert) for name in ("dense", "moe") for shape in SHAPES for by_expert in (False, True)
         if shape != (1, 1, 1) and (not by_expert or (name == "moe" and (shape[2] > 1 or spreads(shape))))]
QUICK = [("moe", (2, 2, 2), True)]


@functools.cache
def model_and_params(name):
    """One of the models, and its random parameters."""
    model = build_model(DecoderConfig(**{**CONFIG, **MODELS[name]}), jnp.dtype("float32"))
    return model, model.init(0, scale=0.2)


def engine_over(name, data, pipe, tensor, *, by_expert=False, **sizes):
    """An engine of as few programs as there can be: a step has at most 8 tokens, or 16 without a pipeline."""
    model, params = model_and_params(name)
    partitions = replica_partitions(model, chosen_mesh(
        data_parallel_size=data, pipeline_parallel_size=pipe, tensor_parallel_size=tensor), by_expert=by_expert)
    chosen = EngineSizes(**{
        "max_model_len": 32, "max_num_seqs": 8, "max_num_batched_tokens": max(16, 8 * pipe), "block_size": BLOCK,
        "kv_cache_bytes": POOL, "speculative_config": None, **sizes})
    return build_engine(model, lambda: params, chosen, partition=partitions)


def requests():
    """Greedy ones, and seeded ones, all with log-probabilities, so that one form of the sampler serves them."""
    return [(prompt, greedy(6, logprobs=2) if number % 2 else
             SamplingParams(temperature=0.9, seed=number, max_tokens=6, ignore_eos=True, logprobs=2))
            for number, prompt in enumerate(prompts(8, 1, low=4, high=14))]


@functools.cache
def expected(name):
    """What one device gives."""
    return all_at_once(engine_over(name, 1, 1, 1), requests())


def stages_and_weights(replica):
    """The stages of a replica, and each one's leaves of the layers and of all else."""
    runner = replica.runner
    stages = getattr(runner, "stages", [runner])
    weights = getattr(runner.weights, "stages", [runner.weights])
    return [(stage, jax.tree.leaves(each.layers), jax.tree.leaves(each.outer))
            for stage, each in zip(stages, weights, strict=True)]


def bytes_by_device(leaves):
    """What each device has of arrays."""
    found = {}
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            found[shard.device] = found.get(shard.device, 0) + shard.data.nbytes
    return found


def nbytes(model, *words):
    """Of the weights in whose paths all the words are."""
    return sum(spec.nbytes for path, spec in model.specs.items() if all(word in path for word in words))


@pytest.mark.parametrize(("name", "shape", "by_expert"), [
    pytest.param(*case, id=f"{case[0]} {'x'.join(map(str, case[1]))}{' by expert' * case[2]}",
                 marks=() if case in QUICK else pytest.mark.sweep) for case in CASES])
def test_tokens_and_log_probabilities_are_those_of_one_device(name, shape, by_expert):
    engine = engine_over(name, *shape, by_expert=by_expert)
    found = all_at_once(engine, requests())
    check(found, expected(name))
    assert all(stats.num_generated_tokens for stats in engine.replica_stats())
    check_shares(engine, name, shape, by_expert=by_expert)


def check(found, wanted):
    """Float32; sums over ``tensor`` are in another order, a few units in the last place of numbers near 10: 1e-4."""
    for output, like in zip(found, wanted, strict=True):
        assert output.error is None
        (sample,), (as_one,) = output.outputs, like.outputs
        assert sample.token_ids == as_one.token_ids
        for token, here, there in zip(sample.token_ids, sample.logprobs, as_one.logprobs, strict=True):
            common = here.keys() & there.keys()
            assert token in common
            assert all(abs(here[each].logprob - there[each].logprob) < 1e-4 for each in common)


def check_shares(engine, name, shape, *, by_expert):
    """A device has its part of the layers and their cache, its part of embedding and head if its stage has these, and
    whole only norms and routers. Of experts that are spread over replicas it has a part of a replica's."""
    model, _ = model_and_params(name)
    data, pipe, tensor = shape
    layers, whole = nbytes(model, "layers."), nbytes(model, "layers.", "norm") + nbytes(model, "layers.", "router")
    experts = nbytes(model, "layers.", "experts") if by_expert and spreads(shape) else 0
    mine = (experts // data + layers - experts - whole) // tensor + whole
    padded = -(-model.config.vocab_size // tensor) * CONFIG["hidden_size"] * 4
    of_token = LAYERS * 2 * HEADS * CONFIG["head_dim"] * 4
    devices = []
    for replica in engine.replicas:
        for number, (stage, inner, outer) in enumerate(stages_and_weights(replica)):
            ends = (number == 0) + (number == pipe - 1)
            own = stage.partition.local_devices
            held = {device: size for device, size in bytes_by_device(inner).items() if device in own}
            devices += held
            assert set(held.values()) == {mine // pipe}
            assert max(bytes_by_device(outer).values(), default=0) <= ends * padded + nbytes(model, "norm.weight")
            cached = bytes_by_device(jax.tree.leaves(stage.cache))
            assert set(cached) == set(held)
            assert set(cached.values()) == {engine.config.num_blocks * BLOCK * of_token // (pipe * tensor)}
            assert max(cached.values()) <= POOL
    assert sorted(device.id for device in devices) == list(range(data * pipe * tensor))


@pytest.mark.parametrize("shape", [(1, 1, 8), (2, 1, 4)])
def test_eight_devices_with_experts_cache_at_least_seven_times_the_tokens_of_one(shape):
    """At equal bytes of the cache on each."""
    one, eight = (engine_over("moe of 8 heads", *each, by_expert=True) for each in ((1, 1, 1), shape))
    held = bytes_by_device(leaf for replica in eight.replicas for leaf in jax.tree.leaves(replica.runner.cache))
    assert len(held) == 8
    assert max(held.values()) <= POOL
    assert shape[0] * eight.config.token_capacity >= 7 * one.config.token_capacity > 0
    experts = nbytes(eight.replicas[0].runner.model, "experts")
    for replica in eight.replicas:
        runner = replica.runner
        (_, inner, _), = stages_and_weights(replica)
        assert max(bytes_by_device(inner).values()) < experts / 8 + nbytes(runner.model, "layers.") - experts
