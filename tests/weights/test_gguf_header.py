"""The GGUF header parser. Oracle: what ``gguf.GGUFWriter`` was given; no damage may end in another exception."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from weights.checkpoint_files import LLAMA_METADATA, write_gguf, write_llama_gguf

from jaxllm.errors import CheckpointError, JaxLLMError, UnsupportedModelError
from jaxllm.weights.gguf import GGUFSource
from jaxllm.weights.gguf_header import read_header


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    metadata = {"tokenizer.ggml.tokens": ["a", "Ġb", "😀"], "tokenizer.ggml.scores": [0.5, -1.0], "a.flag": True}
    data = np.arange(64, dtype=np.float32).reshape(2, 32)
    tensors = {"x.weight": (data, Type.F32), "y.weight": (data[0], Type.F32)}
    return write_gguf(tmp_path / "small.gguf", tensors, metadata)


def test_every_kind_of_metadata_value_is_read(tmp_path: Path):
    path = tmp_path / "all.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    scalars = {
        "uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000, "uint32": 4 * 10**9, "int32": -2 * 10**9,
        "uint64": 2**63 + 1, "int64": -(2**62), "float64": 0.1, "float32": 1e-5, "bool": True, "string": "Grüße\n😀",
    }
    for kind, value in scalars.items():
        getattr(writer, f"add_{kind}")(f"k.{kind}", value)
    writer.add_array("k.numbers", [1, 2, -3])
    writer.add_array("k.reals", [0.5, 1.5])
    writer.add_array("k.flags", [True, False])
    writer.add_array("k.strings", ["", "a", "ü"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read = read_header(path).metadata
    assert {kind: read[f"k.{kind}"] for kind in scalars} == scalars
    assert read["k.numbers"].tolist() == [1, 2, -3]
    assert read["k.reals"].tolist() == [0.5, 1.5]
    assert read["k.flags"].tolist() == [True, False]
    assert read["k.strings"] == ["", "a", "ü"]


def test_tensors_lie_where_the_gguf_package_finds_them(small_file: Path):
    ours = {tensor.name: tensor for tensor in read_header(small_file).tensors}
    for theirs in gguf.GGUFReader(small_file).tensors:
        tensor = ours[theirs.name]
        assert (tensor.offset, tensor.nbytes, tensor.kind.name) == (theirs.data_offset, theirs.n_bytes, "F32")
        assert tensor.shape == tuple(int(size) for size in reversed(theirs.shape))


def test_a_file_cut_at_any_byte_is_refused(small_file: Path, tmp_path: Path):
    content = small_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match=r"cut short|not a GGUF file"):
            read_header(cut)
    cut.write_bytes(content)
    assert len(read_header(cut).tensors) == 2


def test_a_cut_file_is_told_with_both_sizes_and_the_first_tensor_lost(small_file: Path):
    content = small_file.read_bytes()
    small_file.write_bytes(content[:-200])
    message = rf"has {len(content) - 200} bytes and its tensors end at {len(content)}; 2 of 2 .* 'x.weight' the first"
    with pytest.raises(CheckpointError, match=message):
        read_header(small_file)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_damaged_headers_raise_our_errors_only(tmp_path: Path):
    path, _ = write_llama_gguf(tmp_path / "model.gguf", metadata={
        **LLAMA_METADATA, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.tokens": ["<s>", "</s>", "<|im_end|>"], "tokenizer.chat_template": "{{ '<|im_end|>' }}"})
    content = path.read_bytes()
    end = min(tensor.offset for tensor in read_header(path).tensors)
    rng = random.Random(0)
    refused = 0
    with path.open("r+b", buffering=0) as file:
        for _ in range(1000):
            damaged = bytearray(content[:end])
            for _ in range(rng.choice((1, 1, 2, 8))):
                damaged[rng.randrange(end)] = rng.choice((0, 1, 9, 0x7F, 0xFF, rng.randrange(256)))
            file.seek(0)
            file.write(damaged)
            try:
                GGUFSource(path)
            except JaxLLMError:
                refused += 1
    assert 300 < refused < 1000


def test_files_of_another_kind_are_refused(tmp_path: Path):
    path = tmp_path / "other.gguf"
    path.write_bytes(b"PK\x03\x04" + b"\0" * 100)
    with pytest.raises(CheckpointError, match=r"not a GGUF file: it begins with b'PK"):
        read_header(path)


def test_old_versions_and_big_endian_files_are_refused(tmp_path: Path):
    path = tmp_path / "old.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(UnsupportedModelError, match="version 1; versions 2 and 3"):
        read_header(path)
    tensor = {"x": (np.ones(4, np.float32), Type.F32)}
    big = write_gguf(tmp_path / "big.gguf", tensor, endianess=gguf.GGUFEndian.BIG)
    with pytest.raises(UnsupportedModelError, match="big-endian"):
        read_header(big)


@pytest.mark.parametrize(("kind", "name"), [(Type.IQ2_XXS, "IQ2_XXS"), (Type.MXFP4, "MXFP4"), (Type.I32, "I32")])
def test_unsupported_tensor_types_are_named_with_the_tensor(tmp_path: Path, kind: Type, name: str):
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.zeros((2, 256 // block * nbytes), np.uint8)
    path = write_gguf(tmp_path / "odd.gguf", {"blk.0.ffn_up.weight": (data, kind)})
    with pytest.raises(UnsupportedModelError, match=rf"'blk.0.ffn_up.weight' has the type {name}; supported: F32, F16"):
        read_header(path)
