"""``deterministic=True``: nothing on CPUs; on GPUs products and attention that add up in one order, or a refusal."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import TINY, bits, greedy, prompts, run, tiny_engine

from jaxllm import ParameterError
from jaxllm.engine import build
from jaxllm.engine.sizes import EngineSizes, check_deterministic, choose_config
from jaxllm.models.config import DecoderConfig
from jaxllm.models.linear import FixedOrder, gated_linear, grouped_linear, in_fixed_order, linear
from jaxllm.models.model import build_model
from jaxllm.parallel.partition import Partition
from pallas_kernels import matmul, paged_attention, paged_attention_metadata, registry
from pallas_kernels.aot.gpus import lowering_for


def test_on_a_cpu_it_is_accepted_and_changes_nothing():
    engine, plain = tiny_engine("float32", deterministic=True), tiny_engine("float32")
    assert engine.config == plain.config
    with pytest.raises(ParameterError, match="deterministic='yes'"):
        EngineSizes(deterministic="yes")


@pytest.mark.parametrize("changes", [
    {}, pytest.param({"tie_word_embeddings": False}, marks=pytest.mark.sweep)])
def test_a_step_with_weights_in_fixed_order_computes_what_one_without_does(monkeypatch, changes):
    given = [(prompt, greedy(3, logprobs=2)) for prompt in prompts(3)]
    choose = choose_config

    def chosen(*arguments, **options):
        config, spec = choose(*arguments, **options)
        return dataclasses.replace(config, deterministic=True), spec

    plain = tiny_engine("float32", changes=changes)
    monkeypatch.setattr(build, "choose_config", chosen)
    engine = tiny_engine("float32", changes=changes)
    assert engine.config.deterministic
    assert [output.outputs[0].token_ids for output in run(engine, given)] == [
        output.outputs[0].token_ids for output in run(plain, given)]
    alone = [bits(run(engine, [request])[0]) for request in given]
    assert [bits(output) for output in run(engine, given)] == alone


def test_weights_of_products_are_put_in_order_and_nothing_else():
    params = {"qkv": {"weight": jnp.ones((6, 4)), "bias": jnp.ones(6)}, "norm": {"weight": jnp.ones(4)},
              "gate": {"weight": jnp.ones((1, 4))}, "experts": {"bias": jnp.ones((3, 6))}}
    wrapped = in_fixed_order(params)
    assert isinstance(wrapped["qkv"]["weight"], FixedOrder)
    leaves = jax.tree.leaves(wrapped, is_leaf=lambda leaf: isinstance(leaf, FixedOrder))
    assert sum(isinstance(leaf, FixedOrder) for leaf in leaves) == 1
    assert in_fixed_order(params, False) is params


def test_products_with_them_are_those_of_plain_weights():
    rng = np.random.default_rng(0)
    x, weight = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((9, 16), (12, 16)))
    ordered = FixedOrder(weight)
    np.testing.assert_array_equal(linear(x, ordered), linear(x, weight))
    np.testing.assert_allclose(gated_linear(x, ordered), gated_linear(x, weight), rtol=1e-6)
    sizes = jnp.asarray([4, 5, 0], jnp.int32)
    np.testing.assert_array_equal(grouped_linear(x, ordered, sizes), grouped_linear(x, weight, sizes))


def test_on_a_gpu_products_and_attention_are_asked_for_in_one_order(monkeypatch):
    asked = []
    choose = registry.choose

    def spy(operation, implementation=None, platform=None, operands=None):
        asked.append((operation, implementation, (operands or {}).get("deterministic")))
        return choose(operation, "oracle", platform, operands)

    monkeypatch.setattr(registry, "choose", spy)
    x = jnp.ones((8, 16), jnp.bfloat16)
    pool = jnp.ones((2, 1, 16, 16), jnp.bfloat16)
    with lowering_for("h200"):
        jax.eval_shape(lambda x: matmul(x, x, deterministic=True), x)
        jax.eval_shape(lambda x: matmul(x, x), x)
    metadata = paged_attention_metadata(
        jnp.ones((1, 1), jnp.int32), jnp.asarray([0, 8]), jnp.asarray([8]), 8, 16, deterministic=True)
    paged_attention(x.reshape(8, 1, 16), pool, pool, metadata, scale=1.0)
    assert asked == [("matmul", "triton", None), ("matmul", None, None), ("paged_attention", None, True)]


@pytest.mark.parametrize(("changes", "dtype", "platform", "message"), [
    ({}, "bfloat16", "tpu", "not on tpu"),
    ({}, "float32", "gpu", "bfloat16 or float16, not float32"),
    ({"head_dim": 24}, "bfloat16", "gpu", "a multiple of 16"),
    ({"alibi_slopes": (0.5,) * 6}, "bfloat16", "gpu", "without biases by distance"),
])
def test_what_has_no_such_kernels_is_refused(changes, dtype, platform, message):
    model = build_model(DecoderConfig(**{**TINY, "head_dim": 16, **changes}), jnp.dtype(dtype))
    with pytest.raises(ParameterError, match=message):
        check_deterministic(Partition(model), platform)
