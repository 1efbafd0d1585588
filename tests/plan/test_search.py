"""Which mesh is recommended, and which are compared."""

from __future__ import annotations

import json

import pytest
from plan.planned import CONFIGS

import jaxllm
from jaxllm import ParameterError


def search(name, gpus, gpu="h200", **given):
    return jaxllm.search_mesh(CONFIGS / f"{name}.json", gpu, gpus, **given)


def names(found):
    return [plan.mesh.name for plan in found.plans]


def test_all_divisions_of_the_gpus_are_compared():
    assert sorted(names(search("llama-3.1-8b", 4))) == sorted(
        ["D4", "T2 x D2", "T2 x P2", "T4", "P2 x D2", "P4"])
    assert len(names(search("qwen3-30b-a3b", 4))) == 6


def test_one_sequence_is_fastest_where_all_gpus_read_its_weights():
    assert search("llama-3.1-70b", 8, batch=1).best.mesh.name == "T8"


def test_a_small_model_with_many_sequences_is_best_in_replicas():
    found = search("llama-3.1-8b", 8, batch=4096, context=1024)
    assert found.best.mesh.name == "D8"
    assert "D8 decodes" in found.reason


def test_experts_are_dealt_out_where_they_cannot_be_cut():
    config = json.loads((CONFIGS / "qwen3-30b-a3b.json").read_text()) | {"moe_intermediate_size": 760}
    found = jaxllm.search_mesh(config, "h200", 16)
    assert {"T16 + experts", "T8 x D2"} < set(names(found))


def test_meshes_that_do_not_fit_come_last_and_are_counted():
    found = search("llama-3.1-70b", 8)
    fits = [plan.fits for plan in found.plans]
    assert fits == sorted(fits, reverse=True)
    assert not fits[-1]
    assert f"{fits.count(False)} of {len(fits)} meshes do not fit" in found.reason


def test_nothing_that_fits_is_said_with_the_least_that_is_missing():
    found = search("llama-3.1-405b", 2)
    assert not found.best.fits
    assert found.best.memory.short_by == min(plan.memory.short_by for plan in found.plans)
    assert "none of 3 meshes of 2 fits" in found.reason


def test_of_meshes_that_are_as_fast_the_simplest_is_taken():
    found = search("llama-3.1-8b", 8, batch=4096, context=1024)
    fastest = max(plan.decode.tokens_per_second for plan in found.plans)
    assert found.best.decode.tokens_per_second >= 0.95 * fastest


@pytest.mark.parametrize("gpus", [0, -1, 2.5, True, "8"])
def test_a_number_of_gpus_is_a_positive_integer(gpus):
    with pytest.raises(ParameterError, match="gpus="):
        search("llama-3.1-8b", gpus)
