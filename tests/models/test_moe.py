"""Mixtures of experts: routing as transformers does it on the fixtures, and by a plain reference."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from models.fixture_models import NAMES, expected, opened, routes
from models.paged_forward import PagedForward

from jaxllm.models import moe
from jaxllm.models.decoder import run_layer
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
