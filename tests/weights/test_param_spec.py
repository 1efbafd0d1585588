"""``ParamSpec``: sizes, and the one mistake it can catch."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from jaxllm.errors import ParameterError
from jaxllm.weights import ParamSpec


def test_sizes_are_in_elements_and_bytes():
    spec = ParamSpec((3, 5), jnp.bfloat16, ("out", None))
    assert (spec.size, spec.nbytes) == (15, 30)
    assert ParamSpec((), "float32", ()).size == 1


def test_equal_dtypes_make_equal_specs_however_they_are_spelled():
    assert ParamSpec((2,), jnp.float32, (None,)) == ParamSpec((2,), "float32", (None,))


def test_every_dimension_needs_an_axis():
    with pytest.raises(ParameterError, match=r"axes=\('out',\).*one name or None for each dimension of shape \(3, 5\)"):
        ParamSpec((3, 5), jnp.float32, ("out",))
