"""Checkpoints in FP8 with a scale for each block. Oracle: the format's definition, number by number."""

from __future__ import annotations

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from models.fixture_models import FIXTURES
from safetensors.numpy import load_file, save_file

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.loading import load_weights, open_model, open_source
from jaxllm.weights import resolve

FOLDER = FIXTURES / "deepseek_v3"
HEIGHT, WIDTH = 16, 8
CONFIG = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [HEIGHT, WIDTH]}
NAME = "model.layers.1.self_attn.kv_b_proj.weight"  # [72, 36]: no whole number of blocks in either direction


def write(folder, config=CONFIG, changes=None):
    """The fixture with random codes and scales in the place of its layers' projections; returns what they stand for."""
    random = np.random.default_rng(0)
    tensors, expected = {}, {}
    for name, values in load_file(FOLDER / "model.safetensors").items():
        if not name.endswith("_proj.weight"):
            tensors[name] = values
            continue
        codes = random.normal(size=values.shape).astype(ml_dtypes.float8_e4m3fn)
        blocks = -(-values.shape[0] // HEIGHT), -(-values.shape[1] // WIDTH)
        scales = random.uniform(0.1, 0.5, blocks).astype(np.float32)
        tensors[name], tensors[f"{name}_scale_inv"] = codes, scales
        expected[name] = np.array([[float(codes[row, column]) * scales[row // HEIGHT, column // WIDTH]
                                    for column in range(values.shape[1])] for row in range(len(values))], np.float32)
    for name, values in (changes or {}).items():
        tensors.pop(name)
        tensors |= {} if values is None else {name: values}
    save_file(tensors, folder / "model.safetensors")
    hf = json.loads((FOLDER / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(hf | {"quantization_config": config}))
    return expected


def test_a_number_is_what_is_stored_times_its_blocks_scale(tmp_path):
    expected = write(tmp_path)
    source = resolve(tmp_path)
    assert not [name for name in source.tensors if name.endswith("_scale_inv")]
    for name, values in expected.items():
        np.testing.assert_array_equal(source.read(name), values)
    for start, stop in ((0, 1), (15, 17), (40, 72), (31, 32)):
        part = np.empty((stop - start, expected[NAME].shape[1]), np.float32)
        source.read_rows(NAME, start, stop, part)
        np.testing.assert_array_equal(part, expected[NAME][start:stop])


def test_the_model_is_that_of_the_decoded_checkpoint(tmp_path):
    decoded = tmp_path / "decoded"
    decoded.mkdir()
    expected = write(tmp_path)
    save_file(load_file(FOLDER / "model.safetensors") | expected, decoded / "model.safetensors")
    (decoded / "config.json").write_text((FOLDER / "config.json").read_text())
    loaded = [load_weights(source, open_model(source, "bfloat16")) for source in (resolve(tmp_path), resolve(decoded))]
    jax.tree.map(np.testing.assert_array_equal, *loaded)


def test_the_config_is_that_of_the_plain_model(tmp_path):
    write(tmp_path)
    assert "quantization_config" not in resolve(tmp_path).config
    assert "quantization_config" not in open_source(tmp_path, load_format="dummy").config


@pytest.mark.parametrize(("changes", "message"), [
    ({"weight_block_size": None}, "weight_block_size=None"), ({"weight_block_size": [128, 0]}, r"\[128, 0\]"),
    ({"fmt": "e5m2"}, "fmt='e5m2'"), ({"activation_scheme": "static"}, "activation_scheme='static'")])
def test_other_kinds_are_refused_by_name(tmp_path, changes, message):
    write(tmp_path, CONFIG | changes)
    for load_format in ("auto", "dummy"):
        with pytest.raises(UnsupportedModelError, match=message):
            open_source(tmp_path, load_format=load_format)


def test_a_config_that_says_so_without_such_tensors_is_refused(tmp_path):
    write(tmp_path)
    save_file(load_file(FOLDER / "model.safetensors"), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="in FP8, and no tensor is"):
        resolve(tmp_path)


@pytest.mark.parametrize(("changes", "message"), [
    ({f"{NAME}_scale_inv": None}, "there is none"),
    ({f"{NAME}_scale_inv": np.ones((5, 4), np.float32)}, r"shape \[5, 5\]; there is F32 \[5, 4\]"),
    ({NAME: np.zeros(72, ml_dtypes.float8_e4m3fn)}, "is no matrix"),
])
def test_tensors_that_do_not_fit_together_are_refused(tmp_path, changes, message):
    write(tmp_path, changes=changes)
    with pytest.raises(CheckpointError, match=message):
        resolve(tmp_path)
