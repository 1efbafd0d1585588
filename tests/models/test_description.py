"""A model's description says what its modules are, and comes back from its bytes the same."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support import TINY

from jaxllm.models.config import DecoderConfig
from jaxllm.models.description import Description
from jaxllm.models.model import build_model, describe
from jaxllm.models.modules import decoder_modules

CHANGES = [{}, {"tie_word_embeddings": False}, {"attention_bias": True, "mlp_bias": True}, {"num_layers": 5}]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_it_comes_back_from_its_bytes_the_same(changes, dtype):
    config = DecoderConfig(**{**TINY, **changes})
    description = build_model(config, dtype).specs
    found = Description.from_bytes(describe(config, np.dtype(dtype)).to_bytes())
    assert found == describe(config, np.dtype(dtype))
    assert list(found.specs) == list(description)
    assert dataclasses.replace(build_model(config, dtype, found)) == build_model(config, dtype)


def test_layers_are_alike_exactly_where_their_modules_are_equal():
    config = DecoderConfig(**{**TINY, "num_layers": 3})
    modules = decoder_modules(config, np.dtype("float32"))
    assert modules.description.like == (0, 0, 0)
    assert len(set(modules.layers)) == 1


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"specs": {"a": [[2], "float32"]}, "like": [0]}',
                                     b'{"specs": {"a": [[2], "nothing", [null]]}, "like": [0]}',
                                     b'{"specs": {"a": [[2], "float32", []]}, "like": [0]}'])
def test_other_bytes_are_refused(content):
    with pytest.raises((ValueError, TypeError, KeyError)):
        Description.from_bytes(content)
