"""A layer whose experts are spread over replicas and their devices gives each replica what one device gives it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from jaxllm.errors import ParameterError
from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.moe import MoE
from jaxllm.parallel import device_mesh
from jaxllm.parallel.mesh import DATA, TENSOR
from jaxllm.parallel.rules import exchange_config

TOKENS, EXPERTS = 8, 8
CONFIG = DecoderConfig(family="none", vocab_size=40, hidden_size=16, num_layers=1, num_heads=8, num_kv_heads=8,
                       head_dim=8, intermediate_size=16, max_position_embeddings=64)
KINDS = {
    "plain": MoEConfig(EXPERTS, 2, 16, normalize=True),
    "biases": MoEConfig(EXPERTS, 3, 16, bias=True, gate_limit=7.0, gate_slope=1.702),
    "weighed inputs": MoEConfig(EXPERTS, 1, 16, scores="sigmoid", weigh_inputs=True),
    "shared": MoEConfig(EXPERTS, 3, 16, scores="sigmoid", correction=True, groups=2, shared_size=32,
                        shared_gate=True),
}
SHAPES = [(2, 1), (8, 1), (2, 4), (4, 2)]
"""Sizes of data and tensor."""
CASES = [(kind, shape, ragged) for kind in KINDS for ragged, shapes in ((False, SHAPES[:3]), (True, SHAPES))
         for shape in shapes]
QUICK = [("shared", (2, 4), True)]


def layer_of(config):
    """The layer's structure, and random parameters of its shapes by path."""
    graph, shapes = nnx.split(nnx.eval_shape(lambda: MoE(config, jnp.float32)))
    leaves, tree = jax.tree.flatten(shapes)
    random = np.random.default_rng(1)
    return graph, tree, [random.normal(size=leaf.shape).astype(np.float32) for leaf in leaves]


def specs_of(tree, tensor):
    """How the parameters are spread: experts over both axes, the shared MLP over ``tensor``, routers nowhere."""
    def spec(path, _):
        names = jax.tree_util.keystr(path)
        if "experts" in names:
            return PartitionSpec((DATA, TENSOR))
        if "shared'" not in names or tensor == 1:
            return PartitionSpec()
        return PartitionSpec(TENSOR) if "gate_up" in names else PartitionSpec(None, TENSOR)

    return jax.tree.leaves(jax.tree_util.tree_map_with_path(spec, jax.tree.unflatten(tree, range(tree.num_leaves))),
                           is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))


def interleaved(tree, params, tensor):
    """With the rows of the shared MLP's gate and up in an order in which a device's are neighbours."""
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(
        jax.tree.unflatten(tree, params))]
    return [np.concatenate([part for pair in zip(*(np.split(half, tensor) for half in np.split(leaf, 2)), strict=True)
                            for part in pair]) if "shared'" in name and "gate_up" in name else leaf
            for name, leaf in zip(names, params, strict=True)]


def compute(graph, tree, params, x, valid):
    return nnx.merge(graph, jax.tree.unflatten(tree, params))(x, valid)


def ragged_all_to_all(operand, output, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name):
    """What its documentation says, of what all devices have, as CPUs have not got it."""
    operands, starts, counts, targets = (jax.lax.all_gather(each, axis_name) for each in (
        operand, input_offsets, send_sizes, output_offsets))
    here, row = jax.lax.axis_index(axis_name), jnp.arange(output.shape[0])
    for source in range(operands.shape[0]):
        place = row - targets[source, here]
        taken = operands[source].at[starts[source, here] + place].get(mode="clip")
        count = jnp.where(recv_sizes[source] == counts[source, here], recv_sizes[source], -1)  # as they have to be
        output = jnp.where(((place >= 0) & (place < count))[:, None], taken, output)
    return output


def outcome(config, shape, x, valid, change=lambda names, leaf: leaf, *, ragged=False):
    """Of each replica's tokens ``[D, T, ...]``, by the spread layer, and by the whole one."""
    data, tensor = shape
    graph, tree, params = layer_of(config)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(
        jax.tree.unflatten(tree, params))]
    params = [change(path, leaf) for path, leaf in zip(paths, params, strict=True)]
    whole = jax.jit(lambda params, x, valid: compute(graph, tree, params, x, valid))
    local, local_tree, _ = layer_of(exchange_config(config, data, tensor, ragged=ragged))
    devices = device_mesh(data=data, tensor=tensor).devices.reshape(shape)
    spread = jax.jit(jax.shard_map(
        lambda params, x, valid: compute(local, local_tree, params, x[0], valid[0])[None],
        mesh=jax.sharding.Mesh(devices, (DATA, TENSOR)),
        in_specs=(specs_of(tree, tensor), PartitionSpec(DATA), PartitionSpec(DATA)), out_specs=PartitionSpec(DATA),
        check_vma=False))
    found = np.asarray(spread(interleaved(tree, params, tensor), x, valid))
    return found, np.stack([np.asarray(whole(params, *each)) for each in zip(x, valid, strict=True)])


def tokens(data, count=TOKENS):
    """Rows of each replica, of which the first has all, the others fewer, and the last none."""
    x = np.random.default_rng(0).normal(size=(data, count, CONFIG.hidden_size)).astype(np.float32)
    valid = np.arange(count) < np.linspace(count, 0, data).astype(int)[:, None]
    return x, valid


def check(kind, found, expected, valid):
    """To the bit, as experts' results are added in one device's order; the shared MLP's is a sum over devices, a few
    units in the last place of numbers near 100."""
    assert np.abs(expected[valid]).max() > 1
    if kind == "shared":
        np.testing.assert_allclose(found[valid], expected[valid], rtol=1e-5, atol=1e-4)
    else:
        np.testing.assert_array_equal(found[valid], expected[valid])


@pytest.mark.parametrize(("kind", "shape", "ragged"), [
    pytest.param(*case, id=f"{case[0]} {case[1][0]}x{case[1][1]}{' ragged' * case[2]}",
                 marks=() if case in QUICK else pytest.mark.sweep)
    for case in CASES])
def test_every_replica_has_what_one_device_makes_of_its_tokens(kind, shape, ragged, monkeypatch):
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_all_to_all)
    x, valid = tokens(shape[0])
    found, expected = outcome(dataclasses.replace(CONFIG, moe=KINDS[kind]), shape, x, valid, ragged=ragged)
    check(kind, found, expected, valid)
    assert not valid[-1].any()
    if kind != "shared":
        assert (found[-1] == 0).all()


@pytest.mark.parametrize(("expert", "ragged"), [
    (0, True), pytest.param(EXPERTS - 1, True, marks=pytest.mark.sweep),
    pytest.param(0, False, marks=pytest.mark.sweep)])
def test_no_token_is_dropped_where_all_go_to_one_device(expert, ragged, monkeypatch):
    monkeypatch.setattr(jax.lax, "ragged_all_to_all", ragged_all_to_all)
    x, valid = tokens(4)
    valid[:] = True
    x[..., 0] = 5.0

    def change(path, leaf):
        if "router" in path:
            leaf = np.zeros_like(leaf)
            leaf[expert, 0] = leaf[expert ^ 1, 0] = 1.0
        return leaf

    found, expected = outcome(dataclasses.replace(CONFIG, moe=KINDS["plain"]), (4, 1), x, valid, change, ragged=ragged)
    check("plain", found, expected, valid)


@pytest.mark.sweep
def test_tokens_that_do_not_divide_by_the_devices_are_filled_up():
    x, valid = tokens(2, 10)
    valid[:] = True
    check("shared", *outcome(dataclasses.replace(CONFIG, moe=KINDS["shared"]), (2, 4), x, valid), valid)


@pytest.mark.parametrize(("moe", "data", "allowed"), [
    (KINDS["plain"], 3, "one of 1, 2, 4, "), (None, 2, "has 0 experts"), (KINDS["plain"], 16, "has 8 experts")])
def test_experts_that_cannot_be_dealt_out_are_refused(moe, data, allowed):
    with pytest.raises(ParameterError, match="data_parallel_size") as caught:
        exchange_config(dataclasses.replace(CONFIG, moe=moe), data, 2)
    assert allowed.rstrip(", ") in str(caught.value)
