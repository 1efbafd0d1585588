"""``SafetensorsSource``: folders as Hugging Face writes them, and every way in which they come broken."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from weights.checkpoint_files import llama_tensors, write_hf_folder

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.weights import SafetensorsSource

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(("shards", "index"), [(0, False), (3, True), (3, False)], ids=["single", "index", "no_index"])
def test_every_tensor_is_the_one_that_was_saved(tmp_path: Path, shards: int, index: bool):
    source = SafetensorsSource(write_hf_folder(tmp_path / "model", shards=shards, index=index))
    expected = llama_tensors()
    assert set(source.tensors) == set(expected)
    assert source.name == "model"
    for name, values in expected.items():
        assert source.tensors[name].shape == values.shape
        assert source.tensors[name].nbytes == values.nbytes
        np.testing.assert_array_equal(source.read(name), values)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32, np.bool_])
def test_stored_dtypes_are_kept(tmp_path: Path, dtype: type):
    values = np.arange(12).reshape(3, 4).astype(dtype)
    source = SafetensorsSource(write_hf_folder(tmp_path, {"x": values}))
    read = source.read("x")
    assert read.dtype == source.dtype("x") == dtype
    np.testing.assert_array_equal(read, values)


def test_rows_are_converted_on_the_way(tmp_path: Path):
    values = np.random.default_rng(0).standard_normal((300, 257), np.float32)
    source = SafetensorsSource(write_hf_folder(tmp_path, {"x": values}))
    out = np.empty((200, 257), ml_dtypes.bfloat16)
    source.read_rows("x", 50, 250, out)
    np.testing.assert_array_equal(out, values[50:250].astype(ml_dtypes.bfloat16))


def test_generation_config_is_read_and_may_be_absent(tmp_path: Path):
    assert SafetensorsSource(write_hf_folder(tmp_path)).generation_config == {}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert SafetensorsSource(tmp_path).generation_config == {"eos_token_id": [1, 2]}


@pytest.mark.parametrize("index", [True, False])
def test_missing_shards_are_all_named(tmp_path: Path, index: bool):
    write_hf_folder(tmp_path, shards=4, index=index)
    for number in (1, 3):
        (tmp_path / f"model-{number:05d}-of-00004.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 2 of its 4 .*model-00001-of-00004.*model-00003-of-00004"):
        SafetensorsSource(tmp_path)


def test_a_file_cut_at_any_byte_is_refused(tmp_path: Path):
    write_hf_folder(tmp_path, {"a": np.ones((3, 4), np.float32), "b": np.ones(2, np.float16)})
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    for length in range(len(content)):
        file.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"model.safetensors is (cut short|not safetensors)"):
            SafetensorsSource(tmp_path)
    file.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="corrupt"):
        SafetensorsSource(tmp_path)
    file.write_bytes(content)
    assert len(SafetensorsSource(tmp_path).tensors) == 2


def write_header(folder: Path, header: object, data: bytes = b"") -> None:
    write_hf_folder(folder, {})
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(content).to_bytes(8, "little") + content + data)


@pytest.mark.parametrize("entry", [
    {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
    {"dtype": "F32", "shape": [1], "data_offsets": [0]},
    {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]},
    {"shape": [1], "data_offsets": [0, 4]},
    7,
])
def test_entries_that_contradict_themselves_are_refused(tmp_path: Path, entry: object):
    write_header(tmp_path, {"w": entry}, b"\0" * 4)
    with pytest.raises(CheckpointError, match="'w'"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("header", [b"{not json", b"[1, 2]", b"\xff\xfe"])
def test_headers_that_are_not_json_objects_are_refused(tmp_path: Path, header: bytes):
    write_header(tmp_path, header)
    with pytest.raises(CheckpointError, match="is not safetensors"):
        SafetensorsSource(tmp_path)


def test_unsupported_dtypes_are_named_with_the_tensor(tmp_path: Path):
    write_header(tmp_path, {"w": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}}, b"\0" * 4)
    with pytest.raises(UnsupportedModelError, match=r"'w' has the dtype 'F4'; supported: .*BF16"):
        SafetensorsSource(tmp_path)


def test_an_index_that_names_what_is_not_there_is_refused(tmp_path: Path):
    write_hf_folder(tmp_path, shards=2)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"]["model.ghost"] = "model-00002-of-00002.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"names 1 tensors .*'model.ghost' in 'model-00002-of-00002.safetensors'"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("content", ['{"weight_map": {"a": "../secret.safetensors"}}', '{"weight_map": []}', "{}", "{"])
def test_malformed_indexes_are_refused(tmp_path: Path, content: str):
    write_hf_folder(tmp_path, shards=2)
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=INDEX):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '"x"'])
def test_malformed_configs_are_refused(tmp_path: Path, content: str):
    write_hf_folder(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"config.json"):
        SafetensorsSource(tmp_path)


def test_a_folder_without_config_or_weights_says_so(tmp_path: Path):
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        SafetensorsSource(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="has no weights"):
        SafetensorsSource(tmp_path)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "consolidated.00.pth", "model.pt"])
def test_pickled_weights_are_refused_with_the_way_out(tmp_path: Path, file: str):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / file).write_bytes(b"\x80\x04")
    with pytest.raises(CheckpointError, match=rf"{file}.*pickle.*save_pretrained"):
        SafetensorsSource(tmp_path)


def test_other_safetensors_files_are_not_mixed_in(tmp_path: Path):
    write_hf_folder(tmp_path)
    for name in ("adapter_model", "consolidated"):
        safetensors.numpy.save_file({"other": np.ones(2, np.float32)}, tmp_path / f"{name}.safetensors")
    assert set(SafetensorsSource(tmp_path).tensors) == set(llama_tensors())
    (tmp_path / "model.safetensors").rename(tmp_path / "weights.safetensors")
    with pytest.raises(CheckpointError, match=r"several safetensors files .*consolidated.*, weights.safetensors"):
        SafetensorsSource(tmp_path)
    (tmp_path / "consolidated.safetensors").unlink()
    assert set(SafetensorsSource(tmp_path).tensors) == set(llama_tensors())
