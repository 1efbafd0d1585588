"""Files that are written anew. Oracles: the ``gguf`` package's reader, and its quantization of what it decodes."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from weights.checkpoint_files import HIDDEN, LLAMA_METADATA, VOCAB, write_gguf
from weights.quantized_llama import write_mixture

from jaxllm.errors import CheckpointError, ParameterError
from jaxllm.quantization.gguf_file import FILE_TYPES, write_gguf_file
from jaxllm.quantization.q4_k import quantize_q4_k
from jaxllm.weights.gguf import GGUFSource

ADDED = ("general.file_type", "general.quantization_version")


def contents(path):
    reader = gguf.GGUFReader(path)
    fields = {name: (field.types, field.contents()) for name, field in reader.fields.items()
              if not name.startswith("GGUF.") and name not in ADDED}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


def assert_same_tensor(actual, kind, rows):
    assert actual.tensor_type.name == kind
    np.testing.assert_array_equal(np.asarray(actual.data).view(np.uint8).reshape(-1), rows.view(np.uint8).reshape(-1))


@pytest.fixture
def source(tmp_path):
    """Matrices of seven types, plain ones among them."""
    return GGUFSource(write_mixture(tmp_path / "mixture.gguf"))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=() if kind == "Q4_1" else pytest.mark.sweep)
                                  for kind in FILE_TYPES])
def test_matrices_are_quantized_and_all_else_is_as_it_was(source, tmp_path, kind):
    target, done = tmp_path / "new.gguf", []
    found = write_gguf_file(source, target, kind, progress=done.append)
    (fields, before), (new_fields, after) = contents(source.path), contents(target)
    assert new_fields == fields
    assert gguf.GGUFReader(target).fields["general.file_type"].contents() == FILE_TYPES[kind]
    assert list(after) == list(before)
    for name, tensor in before.items():
        assert list(after[name].shape) == list(tensor.shape)
        if len(tensor.shape) == 1 or tensor.tensor_type.name == kind:
            assert_same_tensor(after[name], tensor.tensor_type.name, tensor.data)
        else:
            numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
            quantized = (quantize_q4_k(numbers) if kind == "Q4_K"
                         else gguf.quantize(numbers, gguf.GGMLQuantizationType[kind]))
            assert_same_tensor(after[name], kind, quantized)
    sizes = [sum(int(tensor.n_bytes) for tensor in tensors.values()) for tensors in (before, after)]
    assert (found.bytes_before, found.bytes_after, sum(done)) == (*sizes, sizes[0])
    assert found.changed + found.kept == len(before)
    GGUFSource(target)


def test_large_matrices_are_done_in_parts(source, tmp_path, monkeypatch):
    write_gguf_file(source, tmp_path / "whole.gguf", "Q8_0")
    monkeypatch.setattr("jaxllm.quantization.gguf_file._NUMBERS_AT_ONCE", 3 * HIDDEN + 1)
    write_gguf_file(source, tmp_path / "parts.gguf", "Q8_0")
    assert (tmp_path / "parts.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_rows_that_are_no_whole_blocks_stay(tmp_path):
    odd = np.ones((4, 48), np.float32)
    tensors = {"token_embd.weight": (odd, gguf.GGMLQuantizationType.F32)}
    path = write_gguf(tmp_path / "odd.gguf", tensors, LLAMA_METADATA)
    source = GGUFSource.__new__(GGUFSource)  # a header that no model would have
    source.path, source.metadata = path, {"general.architecture": "llama"}
    found = write_gguf_file(source, tmp_path / "new.gguf", "Q8_0")
    assert (found.changed, found.kept) == (0, 1)
    assert_same_tensor(contents(tmp_path / "new.gguf")[1]["token_embd.weight"], "F32", odd)


@pytest.mark.parametrize(("target", "overwrite", "message"), [
    ("nowhere/new.gguf", False, "target=.*new.gguf' is not allowed: a name in a folder that exists"),
    ("there.gguf", False, "target=.*there.gguf' is not allowed: a file that is not there yet, or overwrite"),
    ("mixture.gguf", True, "target=.*mixture.gguf' is not allowed: another file than the model itself"),
])
def test_what_is_not_allowed_is_named_and_nothing_is_written(source, tmp_path, target, overwrite, message):
    (tmp_path / "there.gguf").write_text("precious")
    before = source.path.read_bytes()
    with pytest.raises(ParameterError, match=message):
        write_gguf_file(source, tmp_path / target, "Q8_0", overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mixture.gguf", "there.gguf"]
    assert (tmp_path / "there.gguf").read_text() == "precious"
    assert source.path.read_bytes() == before


def test_a_file_is_replaced_when_told_to(source, tmp_path):
    target = tmp_path / "there.gguf"
    target.write_text("old")
    write_gguf_file(source, target, "Q8_0", overwrite=True)
    GGUFSource(target)


def test_values_that_are_no_numbers_are_named_and_leave_no_file(tmp_path):
    broken = np.ones((VOCAB, HIDDEN), np.float32)
    broken[3, 5] = np.inf
    path = write_mixture(tmp_path / "broken.gguf", embedding="F32")
    reader = gguf.GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight").data[:] = broken
    reader.data.flush()
    (tmp_path / "there.gguf").write_text("precious")
    with pytest.raises(CheckpointError, match=r"token_embd.weight has values that are infinite or no numbers"):
        write_gguf_file(GGUFSource(path), tmp_path / "there.gguf", "Q8_0", overwrite=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["broken.gguf", "there.gguf"]
    assert (tmp_path / "there.gguf").read_text() == "precious"
