"""Where live parameters are, and whose: copies of what others may change, meshes, devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from live_models import SIZES, answers, made, pointers, reference
from support import bits

from jaxllm import LLM, ParameterError


def test_numpy_arrays_are_copied_as_their_owner_may_change_them():
    config, own = made()
    given = jax.tree.map(np.array, own)
    llm = LLM.from_params(config, given, **SIZES)
    for leaf in jax.tree.leaves(given):
        leaf[...] = np.nan
    assert [bits(output) for output in answers(llm)] == [bits(output) for output in reference()]


def test_the_tree_that_an_engine_hands_out_is_the_callers_to_change():
    config, own = made()
    llm = LLM.from_params(config, own, **SIZES)
    for tree in (own, llm.engine.params):
        tree["norm"]["weight"] = -tree["norm"]["weight"]
        tree["layers"][0]["mlp"].clear()
    assert [bits(output) for output in answers(llm)] == [bits(output) for output in reference()]


def test_a_mesh_of_one_device_costs_no_copy():
    config, own = made()
    mesh = jax.make_mesh((1, 1), ("data", "tensor"))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    given = jax.tree.map(lambda leaf: jax.device_put(leaf, spread), own)
    llm = LLM.from_params(config, given, mesh=mesh, **SIZES)
    assert pointers(llm.engine.params) == pointers(given)
    assert [bits(output) for output in answers(llm)] == [bits(output) for output in reference()]


_ON_TWO_DEVICES = """
import jax
from live_models import PLAIN, SIZES, answers, made
from support import bits

from jaxllm import LLM, ParameterError

config, own = made()
mesh = jax.make_mesh((2,), ("data",))
spread = jax.tree.map(lambda leaf: jax.device_put(leaf, jax.NamedSharding(mesh, jax.P())), own)
try:
    LLM.from_params(config, spread, **SIZES)
except ParameterError as error:
    print(str(error).replace(chr(10), ""))
second = jax.sharding.Mesh(jax.devices()[1:], ("data",))
elsewhere = jax.tree.map(lambda leaf: jax.device_put(leaf, jax.devices()[1]), own)
found = [answers(LLM.from_params(config, given, mesh=where, **SIZES), PLAIN)
         for given, where in ((own, None), (elsewhere, None), (own, second), (elsewhere, second))]
for others in found[1:]:
    print([bits(output) for output in found[0]] == [bits(output) for output in others])
"""


@pytest.mark.sweep
def test_on_a_machine_with_two_devices_either_can_be_the_engines():
    tests = str(Path(__file__).parent)
    found = subprocess.run(
        [sys.executable, "-c", _ON_TWO_DEVICES], capture_output=True, text=True, check=True,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": tests})
    parts = ("embedding.weight lies on 2 devices, and this engine runs on one: make it with mesh=", *["True"] * 3)
    lines = found.stdout.splitlines()
    assert len(lines) == len(parts)
    assert all(part in line for part, line in zip(parts, lines, strict=True)), lines


def test_what_is_no_mesh_is_refused():
    config, own = made()
    for mesh in (1, "data", jax.devices()):
        with pytest.raises(ParameterError, match=r"mesh=.* is not allowed: a jax\.sharding\.Mesh"):
            LLM.from_params(config, own, mesh=mesh, **SIZES)
