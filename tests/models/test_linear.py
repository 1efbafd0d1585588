"""``linear`` is dispatched on the weight's type; a plain weight's row results do not depend on the other rows."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.models import linear as module
from jaxllm.models.linear import head_linear, linear, register_linear


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Scaled:
    """A weight with one scale per output."""

    values: jax.Array
    scale: jax.Array


def test_a_registered_weight_type_is_served(monkeypatch):
    monkeypatch.setattr(module, "_BY_TYPE", {})
    weight = Scaled(jnp.arange(6.0).reshape(2, 3), jnp.array([2.0, 3.0]))
    x = jnp.ones((4, 3))
    with pytest.raises(TypeError, match="Scaled"):
        linear(x, weight)
    register_linear(Scaled, lambda x, weight, dtype: (linear(x, weight.values) * weight.scale).astype(dtype))
    np.testing.assert_allclose(jax.jit(linear)(x, weight), np.tile([6.0, 36.0], (4, 1)))


def test_the_sum_is_float32_and_rounded_once():
    x, weight = jnp.full((8, 4096), 1.0, jnp.bfloat16), jnp.full((1, 4096), 1.0, jnp.bfloat16)
    assert linear(x, weight, jnp.float32)[0, 0] == 4096.0
    assert linear(x, weight).dtype == jnp.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(576, 960), (1536, 576), (96, 199)])
def test_a_rows_bits_do_not_depend_on_the_number_of_rows(dtype, shape):
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(size=(512, shape[0])), dtype)
    weight = jnp.asarray(generator.normal(size=shape[::-1]), dtype)
    product = jax.jit(linear, static_argnums=2)
    whole = np.asarray(product(x, weight, jnp.float32))
    for rows in (8, 16, 24, 32, 64, 104, 128, 256):
        for first in (0, 3):
            part = product(x[first:first + rows], weight, jnp.float32)
            np.testing.assert_array_equal(part, whole[first:first + rows])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(3, 10, 36), (2, 128, 512), (2, 512, 128)])
def test_a_product_of_heads_is_each_ones_and_its_rows_bits_are_their_own(dtype, shape):
    heads, size_in, size_out = shape
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.normal(size=(128, heads, size_in)), dtype)
    weight = jnp.asarray(generator.normal(size=(heads, size_out, size_in)), dtype)
    whole = np.asarray(jax.jit(head_linear)(x, weight))
    for head in range(heads):
        np.testing.assert_array_equal(whole[:, head], linear(x[:, head], weight[head]))
    for rows in (8, 32, 64):
        np.testing.assert_array_equal(jax.jit(head_linear)(x[:rows], weight), whole[:rows])


def test_on_other_devices_a_product_of_heads_is_one_product(monkeypatch):
    generator = np.random.default_rng(0)
    x, weight = (jnp.asarray(generator.normal(size=size), "float32") for size in ((8, 3, 10), (3, 36, 10)))
    by_head = head_linear(x, weight)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "dot_general" in str(jax.make_jaxpr(head_linear)(x, weight))
    np.testing.assert_allclose(head_linear(x, weight), by_head, rtol=0, atol=1e-5)
