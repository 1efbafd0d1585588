"""Folders as GGUF files. Oracles: what is read back with our own reader, whose oracle is llama.cpp's conversion
(tests/weights), and the ``gguf`` package's quantization."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from quantization.small_tokenizers import byte_level
from safetensors.numpy import load_file, save_file
from tiny_folder import CONFIG, write_tiny_folder
from weights.checkpoint_files import GGUF_NAMES, permute_rows

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.loading import open_model
from jaxllm.quantization.gguf_file import write_gguf_file
from jaxllm.quantization.gguf_model import gguf_model
from jaxllm.quantization.int8_folder import write_int8_folder
from jaxllm.tokenization import load_tokenizer
from jaxllm.weights import GGUFSource, SafetensorsSource, resolve

WIDE = {"hidden_size": 64, "intermediate_size": 96}  # rows that divide into blocks of 32


def folder(tmp_path, **changes):
    path = write_tiny_folder(tmp_path / "tiny", **{**WIDE, **changes})
    byte_level().save(str(path / "tokenizer.json"))
    return SafetensorsSource(path)


@pytest.mark.parametrize("kind", ["BF16", pytest.param("Q8_0", marks=pytest.mark.sweep), "Q4_1"])
def test_tensors_are_the_folder_s_in_the_new_type(tmp_path, kind):
    source, done = folder(tmp_path), []
    found = write_gguf_file(source, tmp_path / "new.gguf", kind, progress=done.append)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "new.gguf").tensors}
    originals = load_file(source.path / "model.safetensors")
    for name, values in originals.items():
        theirs = GGUF_NAMES[name.replace("layers.1.", "layers.0.")]
        stored = tensors.pop(theirs.replace("blk.0.", "blk.1.") if "layers.1." in name else theirs)
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        rows = values if heads is None else permute_rows(values, heads)
        used = kind if values.ndim == 2 else "F32"
        assert stored.tensor_type.name == used
        expected = gguf.quantize(rows, gguf.GGMLQuantizationType[used])
        np.testing.assert_array_equal(np.asarray(stored.data).view(np.uint8).reshape(-1),
                                      expected.view(np.uint8).reshape(-1))
    assert not tensors
    assert (found.changed, found.kept, sum(done)) == (15, 5, found.bytes_before)


def test_the_file_describes_the_same_model(tmp_path):
    source = folder(tmp_path, tie_word_embeddings=False, rope_theta=5000.0, rms_norm_eps=2e-6, head_dim=16)
    tensors = load_file(source.path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * 2
    save_file(tensors, source.path / "model.safetensors")
    source = SafetensorsSource(source.path)
    write_gguf_file(source, tmp_path / "new.gguf", "F16")
    written = GGUFSource(tmp_path / "new.gguf")
    assert open_model(written, "float32").model.config == open_model(source, "float32").model.config
    assert written.metadata["general.file_type"] == 1
    np.testing.assert_array_equal(written.read("lm_head.weight"), tensors["lm_head.weight"].astype(np.float16))


def test_biases_of_permuted_projections_go_with_their_rows(tmp_path):
    source = folder(tmp_path, attention_bias=True)
    tensors = load_file(source.path / "model.safetensors")
    tensors |= {name.replace("weight", "bias"): np.arange(len(values), dtype=np.float32)
                for name, values in tensors.items() if "self_attn" in name}
    save_file(tensors, source.path / "model.safetensors")
    write_gguf_file(SafetensorsSource(source.path), tmp_path / "new.gguf", "BF16")
    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "new.gguf").tensors}
    np.testing.assert_array_equal(stored["blk.1.attn_q.bias"].data, permute_rows(np.arange(64, dtype=np.float32), 4))
    np.testing.assert_array_equal(GGUFSource(tmp_path / "new.gguf").read("model.layers.1.self_attn.q_proj.bias"),
                                  np.arange(64))


def test_parts_of_a_matrix_are_put_in_order_as_the_whole(tmp_path, monkeypatch):
    source = folder(tmp_path)
    write_gguf_file(source, tmp_path / "whole.gguf", "Q8_0")
    monkeypatch.setattr("jaxllm.quantization.gguf_file._NUMBERS_AT_ONCE", 5 * 64)
    write_gguf_file(source, tmp_path / "parts.gguf", "Q8_0")
    assert (tmp_path / "parts.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@pytest.mark.parametrize("scaling", [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 64}])
def test_rotary_scaling_means_the_same(tmp_path, scaling):
    source = folder(tmp_path, rope_scaling=scaling)
    write_gguf_file(source, tmp_path / "new.gguf", "F16")
    ours, theirs = (open_model(each, "float32").model.config.rope.inverse_frequencies(16)
                    for each in (GGUFSource(tmp_path / "new.gguf"), source))
    plain = 10_000.0 ** -(np.arange(0, 16, 2) / 16)
    assert not np.allclose(theirs, plain, rtol=1e-2)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_window_that_the_architecture_cannot_say_is_refused(tmp_path):
    source = folder(tmp_path, architectures=["MistralForCausalLM"], sliding_window=128)
    with pytest.raises(UnsupportedModelError, match=r"sliding_window=128 cannot be said in a \.gguf file"):
        write_gguf_file(source, tmp_path / "new.gguf", "Q8_0")
    assert not (tmp_path / "new.gguf").exists()
    gguf_model(folder(tmp_path / "far", sliding_window=CONFIG["max_position_embeddings"]))


@pytest.mark.parametrize("changes", [
    {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, {"partial_rotary_factor": 0.5}], ids=str)
def test_a_rotary_embedding_that_the_architecture_cannot_say_is_refused(tmp_path, changes):
    with pytest.raises(UnsupportedModelError, match="of rotary embeddings, those of whole heads"):
        write_gguf_file(folder(tmp_path, **changes), tmp_path / "new.gguf", "Q8_0")


def test_an_int8_folder_can_become_a_file(tmp_path):
    write_int8_folder(folder(tmp_path), tmp_path / "int8")
    source = resolve(tmp_path / "int8")
    write_gguf_file(source, tmp_path / "new.gguf", "Q8_0")
    name = "model.layers.0.mlp.down_proj.weight"
    numbers = gguf.dequantize(gguf.quantize(source.read(name), gguf.GGMLQuantizationType.Q8_0),
                              gguf.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(GGUFSource(tmp_path / "new.gguf").read(name), numbers)


def test_the_tokenizer_comes_along(tmp_path):
    source = folder(tmp_path)
    write_gguf_file(source, tmp_path / "new.gguf", "Q8_0")
    ours, theirs = load_tokenizer(GGUFSource(tmp_path / "new.gguf").metadata), load_tokenizer(source.path)
    assert (ours.eos_token_id, ours.pad_token_id, ours.chat_template) == (
        theirs.eos_token_id, theirs.pad_token_id, theirs.chat_template)
    assert ours.encode("It's <|im_end|> 1234") == theirs.encode("It's <|im_end|> 1234")


def test_values_beyond_float16_are_named(tmp_path):
    source = folder(tmp_path, scale=1e6)
    with pytest.raises(CheckpointError, match=r"token_embd\.weight has values beyond float16's range; write .* BF16"):
        write_gguf_file(source, tmp_path / "new.gguf", "F16")
    assert not (tmp_path / "new.gguf").exists()
