"""Parameters that a trainer spread over the devices that are replicas here, on virtual devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from parallel.engines import POOL, SIZES, model_and_params

from jaxllm import LLM, ParameterError


def _spread(params, mesh, axis):
    """Rows over the axis where they divide by it, as a trainer with fully sharded data parallelism has them."""
    def put(leaf):
        divides = leaf.shape[0] % mesh.size == 0
        return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(axis if divides else None)))
    return jax.tree.map(put, params)


def test_parameters_spread_over_the_replicas_are_gathered_for_each():
    model, params = model_and_params()
    mesh = Mesh(np.array(jax.devices()[3:1:-1]), ("fsdp",))
    spread = _spread(params, mesh, "fsdp")
    llm = LLM.from_params(model.config, spread, mesh=mesh, kv_cache_bytes=POOL, **SIZES)
    _check_replicas(llm, mesh, params)
    llm.sleep(2)
    llm.wake_up()
    llm.update_params(spread)
    _check_replicas(llm, mesh, params)


def _check_replicas(llm, mesh, params):
    """Each has all parameters, on its own device."""
    for replica, device in zip(llm.engine.replicas, mesh.devices, strict=True):
        found = replica.runner.weights.params
        assert {place for leaf in jax.tree.leaves(found) for place in leaf.devices()} == {device}
        jax.tree.map(np.testing.assert_array_equal, found, params)


def test_without_a_mesh_such_parameters_are_refused():
    model, params = model_and_params()
    spread = _spread(params, Mesh(np.array(jax.devices()[:2]), ("fsdp",)), "fsdp")
    with pytest.raises(ParameterError, match="make it with mesh="):
        LLM.from_params(model.config, spread, kv_cache_bytes=POOL, **SIZES)
