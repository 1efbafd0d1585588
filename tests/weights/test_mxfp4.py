"""Checkpoints in MXFP4. Oracle: the OCP MX specification, spelled out bit by bit; that transformers decodes a whole
model to the same numbers, the fixture ``gpt_oss_mxfp4`` shows (tests/models/test_families.py)."""

from __future__ import annotations

import json
import shutil

import jax
import ml_dtypes
import numpy as np
import pytest
from models.fixture_models import FIXTURES, opened
from safetensors.numpy import load_file, save_file

from jaxllm.errors import CheckpointError
from jaxllm.loading import load_weights, open_model, open_source
from jaxllm.weights import resolve
from jaxllm.weights.mxfp4 import decode

FOLDER = FIXTURES / "gpt_oss_mxfp4"
NAME = "model.layers.1.mlp.experts.gate_up_proj"


def number(code, scale):
    """Of four bits and the byte of their scale: sections 5.3.3 and 5.4.1."""
    sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
    return (-1) ** sign * size * 2.0 ** (scale - 127)


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(FOLDER, tmp_path / "model")


def change(folder, **changes):
    """Other tensors in the place of those of a name, or none."""
    tensors = load_file(folder / "model.safetensors")
    for part, values in changes.items():
        tensors.pop(f"{NAME}_{part}", None)
        if values is not None:
            tensors[f"{NAME}_{part}"] = values
    save_file(tensors, folder / "model.safetensors")


def test_every_byte_is_the_two_numbers_that_the_specification_says():
    blocks = np.arange(256, dtype=np.uint8).reshape(16, 16)
    scales = np.array([0, 1, 60, 118, 119, 120, 121, 122, 123, 124, 126, 127, 128, 129, 200, 252], np.uint8)
    expected = [[number(code, int(scale)) for byte in line for code in (byte & 15, byte >> 4)]
                for line, scale in zip(blocks.tolist(), scales, strict=True)]
    decoded = decode(blocks, scales)
    np.testing.assert_array_equal(decoded, np.array(expected, np.float64).astype(np.float32))
    np.testing.assert_array_equal(np.signbit(decoded), np.signbit(expected))
    np.testing.assert_array_equal(decoded.astype(ml_dtypes.bfloat16).astype(np.float32), decoded)  # nothing is rounded


def test_a_tensor_appears_as_transformers_has_it():
    source, stored = resolve(FOLDER), load_file(FOLDER / "model.safetensors")
    blocks, scales = stored[f"{NAME}_blocks"], stored[f"{NAME}_scales"]
    experts, size_out, groups, _ = blocks.shape
    assert source.tensors[NAME].shape == (experts, groups * 32, size_out)
    assert not [name for name in source.tensors if name.endswith(("_blocks", "_scales"))]
    values = source.read(NAME)
    assert values.dtype == ml_dtypes.bfloat16
    for expert, column, row in [(0, 0, 0), (4, 63, 63), (2, 33, 17), (1, 31, 40)]:
        byte = int(blocks[expert, column, row // 32, row % 32 // 2])
        assert float(values[expert, row, column]) == number(
            byte >> 4 if row % 2 else byte & 15, int(scales[expert, column, row // 32]))
    part = np.empty((2, *values.shape[1:]), np.float32)
    source.read_rows(NAME, 1, 3, part)
    np.testing.assert_array_equal(part, values[1:3].astype(np.float32))


def test_the_config_is_that_of_the_plain_model():
    assert "quantization_config" not in resolve(FOLDER).config
    assert "quantization_config" not in open_source(FOLDER, load_format="dummy").config


def test_a_checkpoint_that_was_decoded_gives_the_same_parameters(folder):
    source = resolve(FOLDER)
    save_file({name: source.read(name) for name in source.tensors}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(dict(source.config)))
    plain = resolve(folder)
    params = load_weights(plain, open_model(plain, "bfloat16"))
    jax.tree.map(np.testing.assert_array_equal, params, opened("gpt_oss_mxfp4", "bfloat16")[1])


def test_decoded_experts_can_be_quantized_to_int8():
    source = resolve(FOLDER)
    model = open_model(source, "bfloat16", quantization="int8")
    rows = load_weights(source, model)["layers"][0]["mlp"]["experts"]["down"]["weight"]
    plain = opened("gpt_oss_mxfp4", "float32")[1]["layers"][0]["mlp"]["experts"]["down"]["weight"]
    wide = np.asarray(rows.blocks).view(np.int8) * np.asarray(rows.scale)[:, None]
    np.testing.assert_allclose(wide, plain, rtol=0, atol=np.abs(plain).max() / 127)


@pytest.mark.parametrize(("changes", "message"), [
    ({"scales": None}, "needs .*_scales.*there is none"),
    ({"scales": np.zeros((5, 64, 1), np.uint8)}, r"there is U8 \[5, 64, 1\]"),
    ({"blocks": np.zeros((5, 64, 2, 8), np.uint8)}, r"U8 \[5, 64, 2, 8\]"),
    ({"blocks": np.zeros((5, 64, 2, 16), np.int8)}, "I8"),
])
def test_blocks_and_scales_that_do_not_fit_together_are_refused(folder, changes, message):
    change(folder, **changes)
    with pytest.raises(CheckpointError, match=message):
        resolve(folder)


def test_a_name_that_is_there_in_both_ways_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {NAME: np.zeros((5, 64, 64), np.float32)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="both there"):
        resolve(folder)


def test_a_scale_that_is_no_number_is_refused(folder):
    scales = load_file(folder / "model.safetensors")[f"{NAME}_scales"].copy()
    scales[3, 2, 1] = 255
    change(folder, scales=scales)
    source = resolve(folder)
    with pytest.raises(CheckpointError, match="no number"):
        load_weights(source, open_model(source, "float32"))


def test_a_config_that_says_so_without_such_tensors_is_refused(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({name: values for name, values in tensors.items() if "experts" not in name}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="MXFP4"):
        resolve(folder)
