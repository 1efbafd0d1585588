"""Latent attention: what it keeps per token, and in which caches it works. That it is right, test_families.py shows."""

from __future__ import annotations

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest
from models.fixture_models import FIXTURES, expected, opened
from models.paged_forward import PagedForward
from safetensors.numpy import load_file, save_file
from support import greedy, run

from jaxllm.engine.build import build_engine
from jaxllm.engine.sizes import EngineSizes, cache_spec
from jaxllm.errors import UnsupportedModelError
from jaxllm.loading import open_model
from jaxllm.models.config import LatentConfig
from jaxllm.models.model import build_model
from jaxllm.models.registry import family_of
from jaxllm.weights import resolve

NAME = "deepseek_v3"
LAYERS, RANK, ROTATED = 3, 36, 12


@pytest.mark.parametrize(("dtype", "cache", "of_a_token"), [
    ("float32", "auto", 4 * (RANK + ROTATED)), ("bfloat16", "auto", 2 * (RANK + ROTATED)),
    ("bfloat16", "int8", RANK + ROTATED + 4)])
def test_the_cache_keeps_one_latent_and_one_rotated_key_per_token_and_layer(dtype, cache, of_a_token):
    model = opened(NAME, dtype)[0].model
    assert cache_spec(model, cache).bytes_per_token == LAYERS * of_a_token


def test_memory_for_blocks_is_counted_in_those_bytes():
    model, params = opened(NAME, "float32")
    engine = build_engine(model.model, lambda: params, EngineSizes(
        max_model_len=64, max_num_seqs=2, max_num_batched_tokens=32, block_size=8, kv_cache_bytes=100_000))
    assert engine.config.num_blocks == 100_000 // (LAYERS * 4 * (RANK + ROTATED) * 8)


def test_the_engine_gives_the_greedy_tokens_and_shares_prefixes():
    model, params = opened(NAME, "float32")
    sizes = EngineSizes(max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32, block_size=8)
    engine = build_engine(model.model, lambda: params, sizes)
    requests = [(ids[:prompt].tolist(), greedy(len(ids) - prompt)) for ids, prompt, _ in expected(NAME)]
    for _ in range(2):
        outputs = run(engine, requests)
        for (ids, prompt, _), output in zip(expected(NAME), outputs, strict=True):
            assert output.outputs[0].token_ids == ids[prompt:].tolist()
    assert outputs[2].num_cached_tokens == 16


@pytest.mark.sweep
def test_latents_in_int8_are_near_those_that_are_not():
    """Tolerance: 127 steps to the largest number of a latent; a wrong one is off by as much as logits are large."""
    model, params = opened(NAME, "float32")
    ids = expected(NAME)[0][0][:24]
    logits = [PagedForward(model.model, params, rows=1, length=64, tokens_per_step=64, buckets=(64,), cache=cache
                           ).step([ids])[0] for cache in ("auto", "int8")]
    off = np.abs(logits[1] - logits[0]).max(-1) / np.abs(logits[0]).max()
    assert 0 < np.median(off) < 0.05


def test_a_layer_that_guesses_further_tokens_is_left_aside(tmp_path):
    folder = FIXTURES / NAME
    tensors = load_file(folder / "model.safetensors")
    extra = {name.replace("layers.2.", "layers.3."): values for name, values in tensors.items() if "layers.2." in name}
    save_file(tensors | extra, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    assert open_model(resolve(tmp_path), "float32").model.specs == opened(NAME, "float32")[0].model.specs


def test_the_correction_of_the_choice_is_float32_in_any_dtype():
    specs = opened(NAME, "bfloat16")[0].model.specs
    assert specs["layers.1.mlp.router.correction"].dtype == jnp.float32
    assert specs["layers.1.mlp.router.weight"].dtype == jnp.bfloat16


@pytest.mark.parametrize(("changes", "message"), [
    ({"sliding_window": 4}, "no sliding_window=4"), ({"num_kv_heads": 3}, "num_kv_heads=1"),
    ({"attention_scale": None}, "attention_scale"), ({"qk_norm": "head"}, "qk_norm"),
    ({"latent": LatentConfig(36, 28, 10, 14, 14)}, "head_dim=50")])
def test_a_config_that_it_cannot_compute_is_refused(changes, message):
    hf = json.loads((FIXTURES / NAME / "config.json").read_text())
    config = family_of(hf).decoder_config(hf)
    assert build_model(config, "float32").num_parameters > 0
    with pytest.raises(UnsupportedModelError, match=message):
        dataclasses.replace(config, **changes)
