"""Mixtures of experts: routing as transformers does it on the fixtures, and by a plain reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.fixture_models import NAMES, expected, opened, routes
from models.paged_forward import PagedForward

from jaxllm.errors import UnsupportedModelError
from jaxllm.models import moe
from jaxllm.models.decoder import run_layer
from jaxllm.models.moe_config import MoEConfig
from jaxllm.models.routing import route

ROUTED = [name for name in NAMES if routes(name)]


@pytest.mark.parametrize("name", [name if name == "mixtral" else pytest.param(name, marks=pytest.mark.sweep)
                                  for name in ROUTED])
def test_tokens_take_the_experts_that_they_take_in_transformers(name, monkeypatch):
    taken = []

    def recorded(logits, config):
        weights, experts = route(logits, config)
        jax.debug.callback(lambda experts: taken.append(np.sort(experts, -1)), experts, ordered=True)
        return weights, experts

    monkeypatch.setattr(moe, "route", recorded)
    run_layer.clear_cache()
    try:
        model, params = opened(name, "float32")
        forward = PagedForward(model.model, params, rows=3, length=64, tokens_per_step=128, buckets=(64, 128))
        ids = expected(name)[2][0]
        forward.step([[], [], ids])
        jax.effects_barrier()
    finally:
        run_layer.clear_cache()  # of what was traced with the recorder
    np.testing.assert_array_equal(np.stack(taken)[:, :len(ids)], routes(name)[2])


def _logits(rows=64, experts=7):
    return np.random.default_rng(0).normal(size=(rows, experts)).astype(np.float32)


def _reference(logits, config):
    """In float64, with a full sort: of equal logits the first."""
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    experts = np.argsort(-logits, -1, kind="stable")[:, :config.experts_per_token]
    weights = np.take_along_axis(powers / powers.sum(-1, keepdims=True), experts, -1)
    return weights / weights.sum(-1, keepdims=True) if config.normalize else weights, experts


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("taken", [1, 3, 7])
def test_the_largest_scores_are_taken_with_their_softmax(taken, normalize):
    config = MoEConfig(7, taken, 8, normalize=normalize)
    logits = _logits()
    logits[5, 2] = logits[5, 4]  # of equal ones the first
    weights, experts = route(jnp.asarray(logits), config)
    wanted, chosen = _reference(logits, config)
    np.testing.assert_array_equal(experts, chosen)
    np.testing.assert_allclose(weights, wanted, rtol=1e-6)


def test_sparsemixer_weighs_each_of_two_experts_among_those_near_it():
    logits = np.array([[1.0, 0.9, -3.0, 0.5], [2.0, -1.0, 1.9, 1.8], [0.0, 0.0, 0.0, -1.0]], np.float32)
    weights, experts = route(jnp.asarray(logits), MoEConfig(4, 2, 8, scores="sparsemixer", nearness=0.1))
    np.testing.assert_array_equal(experts, [[0, 1], [0, 2], [0, 1]])

    def softmax(first, *others):
        return np.exp(first) / np.exp([first, *others]).sum()

    wanted = [[softmax(1.0, 0.9), 1.0], [softmax(2.0, 1.9, 1.8), softmax(1.9, 1.8)], [1 / 3, 1 / 2]]
    np.testing.assert_allclose(weights, wanted, rtol=1e-6)


@pytest.mark.parametrize("scores", ["softmax", "sparsemixer"])
def test_a_tokens_route_has_the_same_bits_in_any_company(scores):
    config = MoEConfig(7, 2, 8, scores=scores, nearness=0.2)
    logits = jnp.asarray(_logits(128))
    routed = jax.jit(route, static_argnums=1)
    whole = routed(logits, config)
    for first, count in ((0, 1), (3, 8), (40, 32)):
        for found, wanted in zip(routed(logits[first:first + count], config), whole, strict=True):
            np.testing.assert_array_equal(found, wanted[first:first + count])


@pytest.mark.parametrize(("fields", "message"), [
    ({"num_experts": 0}, "num_experts=0 of its experts; a positive integer"),
    ({"expert_size": True}, "expert_size=True"),
    ({"shared_size": -1}, "shared_size=-1"),
    ({"nearness": -0.1}, "nearness of experts=-0.1"),
    ({"experts_per_token": 6}, "experts_per_token=6; at most num_experts=5"),
    ({"experts_per_token": 3, "scores": "sparsemixer"}, "experts_per_token=3; sparsemixer takes 2"),
])
def test_experts_that_make_no_sense_are_refused(fields, message):
    with pytest.raises(UnsupportedModelError, match=message):
        MoEConfig(**{"num_experts": 5, "experts_per_token": 2, "expert_size": 8, **fields})
