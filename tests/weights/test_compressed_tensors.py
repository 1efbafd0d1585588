"""int8 checkpoints of others: what is read, and what is refused. Oracle: the format's own definition, spelled out here
number by number."""

from __future__ import annotations

import copy
import json

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_folder import write_tiny_folder

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.loading import load_weights, open_model, open_source
from jaxllm.weights import ConfigSource, resolve
from jaxllm.weights.compressed_tensors import CompressedTensorsSource, plain_config

WIDTH, ODD = 32, 46  # rows of the down projections do not divide into words of four bytes
WEIGHTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "group_size": None, "dynamic": False,
           "actorder": None, "block_structure": None, "observer": "minmax", "observer_kwargs": {}}
CONFIG = {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
          "ignore": ["lm_head"], "kv_cache_scheme": None, "config_groups": {
              "group_0": {"targets": ["Linear"], "weights": WEIGHTS, "input_activations": None,
                          "output_activations": None}}}


def packed(codes):
    """int32 words: each number plus 128 at its place, the first in the lowest bits, zeros where a row has no more."""
    words = np.zeros((len(codes), -(-codes.shape[1] // 4)), np.uint32)
    for column in range(codes.shape[1]):
        words[:, column // 4] |= (codes[:, column].astype(np.int64) + 128).astype(np.uint32) << 8 * (column % 4)
    return words.view(np.int32)


def write_compressed(path, *, layout="pack-quantized", scale_dtype=np.float32, config=CONFIG, seed=0):
    """A tiny folder with random codes, -128 among them; returns it with the numbers that its matrices stand for."""
    write_tiny_folder(path, intermediate_size=ODD)
    random = np.random.default_rng(seed)
    tensors, expected = {}, {}
    for name, values in load_file(path / "model.safetensors").items():
        if values.ndim != 2 or "embed" in name:
            tensors[name] = values
            continue
        codes = random.integers(-128, 128, values.shape).astype(np.int8)
        scale = random.uniform(1e-3, 1e-2, (len(codes), 1)).astype(scale_dtype)
        expected[name] = codes * scale.astype(np.float32)
        if layout == "pack-quantized":
            tensors[f"{name}_packed"] = packed(codes)
            tensors[f"{name}_shape"] = np.array(codes.shape)
        else:
            tensors[name] = codes
        tensors[f"{name}_scale"] = scale
    save_file(tensors, path / "model.safetensors")
    change_config(path, quantization_config={**config, "format": layout})
    return path, expected


def change_config(path, **changes):
    (path / "config.json").write_text(json.dumps(json.loads((path / "config.json").read_text()) | changes))


def change_tensors(path, change):
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(("layout", "scale_dtype"), [
    ("pack-quantized", np.float32), ("int-quantized", ml_dtypes.bfloat16), ("naive-quantized", np.float16)])
def test_matrices_stand_for_codes_times_factors(tmp_path, layout, scale_dtype):
    path, expected = write_compressed(tmp_path / "m", layout=layout, scale_dtype=scale_dtype)
    source = resolve(path)
    assert isinstance(source, CompressedTensorsSource)
    assert "quantization_config" not in source.config
    for name, numbers in expected.items():
        np.testing.assert_array_equal(source.read(name), numbers)
        part = np.empty((3, numbers.shape[1]), ml_dtypes.bfloat16)
        source.read_rows(name, 5, 8, part)
        np.testing.assert_array_equal(part, numbers[5:8].astype(ml_dtypes.bfloat16))


def test_what_is_stored_is_what_is_computed_with(tmp_path):
    path, expected = write_compressed(tmp_path / "m")
    source = resolve(path)
    opened = open_model(source, "bfloat16")
    assert opened.quantization == "int8"
    down = load_weights(source, opened)["layers"][1]["mlp"]["down"]["weight"]
    numbers = expected["model.layers.1.mlp.down_proj.weight"]
    np.testing.assert_array_equal(np.asarray(down.blocks).view(np.int8) * np.asarray(down.scale)[:, None], numbers)


def test_it_can_be_decoded_instead(tmp_path):
    path, expected = write_compressed(tmp_path / "m")
    source = resolve(path)
    opened = open_model(source, "float32", quantization="none")
    assert opened.quantization is None
    params = load_weights(source, opened)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    np.testing.assert_array_equal(params["layers"][0]["attention"]["out"]["weight"],
                                  expected["model.layers.0.self_attn.o_proj.weight"])


def test_random_weights_take_the_form_that_the_config_says(tmp_path):
    path, _ = write_compressed(tmp_path / "m")
    source = open_source(path, load_format="dummy")
    assert isinstance(source, ConfigSource)
    assert open_model(source, "float32", has_weights=False).quantization == "int8"


@pytest.mark.parametrize(("place", "value", "message"), [
    ("weights.num_bits", 4, r"group_0\.weights\.num_bits=4 is not supported: 8 is"),
    ("weights.type", "float", r"weights\.type='float' is not supported: 'int' is"),
    ("weights.symmetric", False, r"weights\.symmetric=False is not supported: True is"),
    ("weights.strategy", "group", r"weights\.strategy='group' is not supported: 'channel' is"),
    ("weights.strategy", None, r"weights\.strategy='tensor' is not supported"),
    ("weights.group_size", 128, r"weights\.group_size=128 is not supported: None or -1 is"),
    ("weights.actorder", "group", r"weights\.actorder='group' is not supported"),
    ("weights.dynamic", True, r"weights\.dynamic=True is not supported: False is"),
    ("input_activations", {"num_bits": 8}, r"group_0\.input_activations={'num_bits': 8} is not supported: null"),
    ("output_activations", {"num_bits": 8}, r"output_activations=.* is not supported: null \(weights alone\)"),
    ("format", "marlin-24", r"group_0\.format='marlin-24' is not supported: 'pack-quantized' or 'int-quantized'"),
    ("weights", None, r"config_groups\.group_0 is .* an object with weights, or one of the names W8A16"),
])
def test_groups_that_cannot_be_computed_with_are_refused_by_name(place, value, message):
    config = copy.deepcopy(CONFIG)
    entries = config["config_groups"]["group_0"]
    *parents, name = place.split(".")
    for parent in parents:
        entries = entries[parent]
    entries[name] = value
    with pytest.raises(UnsupportedModelError, match=message):
        plain_config({"quantization_config": config}, "config.json")


@pytest.mark.parametrize(("changes", "message"), [
    ({"format": "nvfp4-pack-quantized"}, r"quantization_config\.format='nvfp4-pack-quantized' is not supported"),
    ({"kv_cache_scheme": {"num_bits": 8}}, r"kv_cache_scheme={'num_bits': 8} is not supported: null is"),
    ({"transform_config": {"config_groups": {}}}, "transform_config=.* is not supported"),
    ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config=.* is not supported"),
    ({"config_groups": {"W4A16": ["Linear"]}}, r"config_groups\.W4A16 is \['Linear'\], which is not supported"),
])
def test_other_settings_are_refused_by_name(changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        plain_config({"quantization_config": CONFIG | changes}, "config.json")


@pytest.mark.parametrize("groups", [None, {}, ["Linear"]])
def test_a_config_without_groups_is_damaged(groups):
    with pytest.raises(CheckpointError, match=r"config_groups is .* an object with a group or more is needed"):
        plain_config({"compression_config": CONFIG | {"config_groups": groups}}, "config.json")


@pytest.mark.parametrize("changes", [
    {"config_groups": {"W8A16": ["Linear"]}}, {"sparsity_config": {"format": "dense"}},
    {"quantization_status": "frozen"},
    {"config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 8, "group_size": -1}}}},
])
def test_other_spellings_of_the_same_are_read(changes):
    assert plain_config({"a": 1, "quantization_config": CONFIG | changes}, "config.json") == {"a": 1}


AT = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(("change", "message"), [
    (lambda tensors: tensors.pop(f"{AT}_scale"), r"needs '.*q_proj.weight_scale'.* there is none"),
    (lambda tensors: tensors.update({f"{AT}_scale": np.ones((3, 1), np.float32)}), r"there is F32 \[3, 1\]"),
    (lambda tensors: tensors.update({f"{AT}_scale": np.ones((32, 1), np.int8)}), r"there is I8 \[32, 1\]"),
    (lambda tensors: tensors.pop(f"{AT}_shape"), "needs '.*q_proj.weight_shape', two integers"),
    (lambda tensors: tensors.update({f"{AT}_shape": np.array([32, 64])}), r"does not fit '.*weight_shape', \[32, 64\]"),
    (lambda tensors: tensors.update({f"{AT}_packed": np.ones((32, 8), np.int64)}), r"I64 \[32, 8\], which does not"),
    (lambda tensors: tensors.update({AT: np.ones((32, 32), np.float32)}), "are both there; one is needed"),
])
def test_tensors_that_do_not_fit_together_are_named(tmp_path, change, message):
    path, _ = write_compressed(tmp_path / "m")
    change_tensors(path, change)
    with pytest.raises(CheckpointError, match=message):
        resolve(path)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_factors_that_are_no_numbers_are_named(tmp_path, number):
    path, _ = write_compressed(tmp_path / "m")
    change_tensors(path, lambda tensors: tensors.update({f"{AT}_scale": np.full((32, 1), number, np.float32)}))
    source = resolve(path)
    opened = open_model(source, "float32")
    with pytest.raises(CheckpointError, match=r"q_proj\.weight_scale' holds numbers that are infinite or no numbers"):
        load_weights(source, opened)


def test_zero_points_beside_symmetric_weights_are_unexpected(tmp_path):
    path, _ = write_compressed(tmp_path / "m")
    change_tensors(path, lambda tensors: tensors.update({f"{AT}_zero_point": np.ones((32, 1), np.int8)}))
    with pytest.raises(CheckpointError, match=r"unexpected: .*q_proj\.weight_zero_point"):
        open_model(resolve(path), "float32")


def test_a_config_that_says_more_than_the_tensors_is_damaged(tmp_path):
    path = write_tiny_folder(tmp_path / "m")
    change_config(path, quantization_config=CONFIG)
    with pytest.raises(CheckpointError, match="says that the model is quantized, and no tensor is"):
        resolve(path)


def test_a_file_that_is_cut_short_is_found(tmp_path):
    path, _ = write_compressed(tmp_path / "m")
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content[:-40])
    with pytest.raises(CheckpointError, match="cut short"):
        resolve(path)
