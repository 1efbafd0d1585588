"""Mixtures of experts: routing as transformers does it on the fixtures, and by a plain reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models.fixture_models import NAMES, check, expected, opened, routes
from models.paged_forward import PagedForward

from jaxllm.errors import UnsupportedModelError
from jaxllm.models import moe
from jaxllm.models.config import DecoderConfig
from jaxllm.models.decoder import run_layer
from jaxllm.models.moe_config import MoEConfig
from jaxllm.models.routing import route

ROUTED = [name for name in NAMES if routes(name)]


@pytest.mark.parametrize("name", [name if name == "mixtral" else pytest.param(name, marks=pytest.mark.sweep)
                                  for name in ROUTED])
def test_tokens_take_the_experts_that_they_take_in_transformers(name, monkeypatch):
    taken = []

    def recorded(*arguments):
        weights, experts = route(*arguments)
        jax.debug.callback(lambda experts: taken.append(np.sort(experts, -1)), experts, ordered=True)
        return weights, experts

    monkeypatch.setattr(moe, "route", recorded)
    run_layer.clear_cache()
    try:
        model, params = opened(name, "float32")
        forward = PagedForward(model.model, params, rows=3, length=64, tokens_per_step=128, buckets=(64, 128))
        ids = expected(name)[2][0]
        check(name, 2, forward.step([[], [], ids])[2])
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


def _layer(config, seed=0):
    """A layer's module and its parameters by path, float32."""
    layer = moe.MoE(config, jnp.float32)
    graph, state = nnx.split(layer)
    rng = np.random.default_rng(seed)
    params = {path: rng.normal(size=leaf.get_value().shape).astype(np.float32) * 0.3
              for path, leaf in nnx.to_flat_state(state)}
    tree = nnx.from_flat_state({path: leaf.replace(jnp.asarray(params[path]))
                                for path, leaf in nnx.to_flat_state(state)})
    compute = jax.jit(lambda x, valid: nnx.merge(graph, tree)(x, valid))
    return compute, {".".join(path): leaf for path, leaf in params.items()}


def _silu(x):
    return x / (1 + np.exp(-x))


def _expected(config, params, x):
    """Token by token, expert by expert, in float64."""
    wide = {path: leaf.astype(np.float64) for path, leaf in params.items()}

    def mlp(row, gate_up, down):
        gate, up = np.split(gate_up @ row, 2)
        return down @ (_silu(gate) * up)

    count, rows = config.num_experts, []
    gate_up = np.split(wide["experts.gate_up.weight"], count)
    down = np.split(wide["experts.down.weight"], count)
    weights, experts = _reference(x @ wide["router.weight"].T, config)
    for row, ours, theirs in zip(x.astype(np.float64), weights, experts, strict=True):
        total = sum(weight * mlp(row, gate_up[expert], down[expert])
                    for weight, expert in zip(ours, theirs, strict=True))
        if config.shared_size is not None:
            shared = mlp(row, wide["shared.gate_up.weight"], wide["shared.down.weight"])
            gate = 1 / (1 + np.exp(-wide["shared_gate.weight"] @ row)) if config.shared_gate else 1
            total = total + gate * shared
        rows.append(total)
    return np.stack(rows)


@pytest.mark.parametrize(("crowded", "shared"), [
    (False, {}), (True, {}), (False, {"shared_size": 6}), (True, {"shared_size": 6, "shared_gate": True})])
def test_no_token_is_dropped_and_each_gets_its_experts(crowded, shared):
    moe_config = MoEConfig(5, 3, 7, normalize=True, **shared)
    config = DecoderConfig("", vocab_size=8, hidden_size=10, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=2,
                           intermediate_size=4, max_position_embeddings=8, moe=moe_config)
    layer, params = _layer(config)
    x = np.random.default_rng(1).normal(size=(1 if crowded else 40, 10)).astype(np.float32)
    x = np.tile(x, (40, 1)) if crowded else x
    valid = np.arange(40) < 33
    found = np.asarray(layer(jnp.asarray(x), jnp.asarray(valid)))
    wanted = _expected(moe_config, params, x)
    np.testing.assert_allclose(found[valid], wanted[valid], rtol=0, atol=1e-5 * np.abs(wanted).max())
    if not shared:
        assert not found[~valid].any()


def _chosen(logits, config, correction):
    """Experts and weights of one token, the plain way: groups by their scores, then experts of those by theirs."""
    scores = 1 / (1 + np.exp(-logits))
    choice = scores + correction
    size = len(logits) // config.groups
    counted = 1 if config.group_score == "largest" else 2
    value = [sum(sorted(choice[group * size:][:size])[-counted:]) for group in range(config.groups)]
    groups = sorted(range(config.groups), key=lambda group: -value[group])[:config.taken_groups]
    experts = sorted((expert for group in groups for expert in range(group * size, (group + 1) * size)),
                     key=lambda expert: -choice[expert])[:config.experts_per_token]
    weights = scores[experts]
    return experts, config.scale * (weights / weights.sum() if config.normalize else weights)


@pytest.mark.parametrize("changes", [
    {}, {"normalize": True, "scale": 2.5}, {"groups": 4, "taken_groups": 2, "group_score": "two largest"},
    {"groups": 6, "taken_groups": 3}])
def test_a_correction_and_groups_change_the_choice_and_not_the_weights(changes):
    config = MoEConfig(12, 3, 8, scores="sigmoid", correction=True, **changes)
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(40, 12)).astype(np.float32)
    correction = (generator.normal(size=12) * 0.3).astype(np.float32)
    weights, experts = jax.jit(route, static_argnums=1)(logits, config, correction)
    for row in range(40):
        expected_experts, expected_weights = _chosen(logits[row], config, correction)
        assert experts[row].tolist() == expected_experts
        np.testing.assert_allclose(weights[row], expected_weights, rtol=1e-5)


def test_a_token_s_corrected_route_has_the_same_bits_in_any_company():
    config = MoEConfig(12, 3, 8, scores="sigmoid", correction=True, normalize=True, scale=2.5, groups=4, taken_groups=2,
                       group_score="two largest")
    logits, correction = _logits(128, 12), np.linspace(-0.2, 0.2, 12, dtype=np.float32)
    routed = jax.jit(route, static_argnums=1)
    whole = routed(logits, config, correction)
    for rows in (8, 32, 64):
        for part, of_all in zip(routed(logits[:rows], config, correction), whole, strict=True):
            np.testing.assert_array_equal(part, of_all[:rows])
