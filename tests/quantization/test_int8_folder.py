"""int8 folders. Oracle: ``quantization="int8"`` of the model that they were made from, to the bit."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import transformers
from safetensors.numpy import load_file, save_file
from tiny_folder import write_tiny_folder
from weights.checkpoint_files import VOCAB, write_llama_gguf
from weights.quantized_llama import write_mixture

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.loading import load_weights, open_model
from jaxllm.quantization import safetensors_writer
from jaxllm.quantization.int8_folder import write_int8_folder
from jaxllm.tokenization import load_tokenizer
from jaxllm.weights import GGUFSource, SafetensorsSource, resolve
from jaxllm.weights.compressed_tensors import CompressedTensorsSource
from jaxllm.weights.safetensors import INDEX

FIXTURES = Path(__file__).parents[1] / "fixtures"
TEXT = "It's 12 o'clock:  na\u00efve \u4f60\u597d!\n"


@pytest.fixture
def folder(tmp_path):
    """One whose down projections have rows that are no whole words."""
    return SafetensorsSource(write_tiny_folder(tmp_path / "tiny", intermediate_size=46))


def params(source, quantization, dtype="bfloat16"):
    return load_weights(source, open_model(source, dtype, quantization=quantization))


def assert_same_params(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"attention_bias": True, "mlp_bias": True}])
def test_what_was_a_folder_loads_to_the_bit_as_int8_of_it(tmp_path, changes):
    path = write_tiny_folder(tmp_path / "tiny", intermediate_size=46, **changes)
    tensors = load_file(path / "model.safetensors")
    if "tie_word_embeddings" in changes:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"][::-1].copy()
    if "mlp_bias" in changes:
        tensors |= {name.replace("weight", "bias"): np.ones(len(values), np.float32)
                    for name, values in tensors.items() if "_proj" in name}
    save_file(tensors, path / "model.safetensors")
    source, done = SafetensorsSource(path), []
    found = write_int8_folder(source, tmp_path / "new", progress=done.append)
    written = resolve(tmp_path / "new")
    assert_same_params(params(written, None), params(source, "int8"))
    assert sum(done) == found.bytes_before == sum(info.nbytes for info in source.tensors.values())
    assert (found.changed, found.kept) == (14, len(source.tensors) - 14)
    assert found.bytes_after == sum(array.nbytes for array in load_file(tmp_path / "new/model.safetensors").values())


@pytest.mark.parametrize("embedding", ["Q6_K", "F16"])
def test_what_was_a_gguf_file_loads_to_the_bit_as_int8_of_it(tmp_path, embedding):
    source = GGUFSource(write_mixture(tmp_path / "mixture.gguf", embedding=embedding))
    write_int8_folder(source, tmp_path / "new")
    assert_same_params(params(resolve(tmp_path / "new"), None), params(source, "int8"))


def test_writing_what_was_written_changes_nothing(folder, tmp_path):
    write_int8_folder(folder, tmp_path / "new")
    write_int8_folder(resolve(tmp_path / "new"), tmp_path / "again")
    files = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == files


def test_several_files_and_parts_hold_the_same(folder, tmp_path, monkeypatch):
    write_int8_folder(folder, tmp_path / "one")
    monkeypatch.setattr("jaxllm.quantization.int8_folder.write_shards",
                        functools.partial(safetensors_writer.write_shards, shard_bytes=3000))
    monkeypatch.setattr("jaxllm.quantization.int8_folder._ELEMENTS_AT_ONCE", 100)
    write_int8_folder(folder, tmp_path / "several")
    index = json.loads((tmp_path / "several" / INDEX).read_text())
    one = load_file(tmp_path / "one" / "model.safetensors")
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in one.values())
    assert len(set(index["weight_map"].values())) > 3
    for name, file in index["weight_map"].items():
        np.testing.assert_array_equal(load_file(tmp_path / "several" / file)[name], one.pop(name))
    assert not one
    assert_same_params(params(resolve(tmp_path / "several"), None), params(folder, "int8"))


def test_the_configuration_is_what_readers_of_the_format_expect(folder, tmp_path):
    write_int8_folder(folder, tmp_path / "new")
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    quantization = config.pop("quantization_config")
    assert config == folder.config
    (group,) = quantization["config_groups"].values()
    assert (quantization["quant_method"], quantization["format"]) == ("compressed-tensors", "pack-quantized")
    assert (quantization["quantization_status"], quantization["ignore"]) == ("compressed", ["lm_head"])
    assert (group["targets"], group["input_activations"]) == (["Linear"], None)
    assert {key: group["weights"][key] for key in ("num_bits", "type", "symmetric", "strategy", "dynamic")} == {
        "num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    tensors = load_file(tmp_path / "new" / "model.safetensors")
    at = "model.layers.1.mlp.down_proj.weight"
    assert {name: (tensors[f"{at}_{name}"].dtype.name, tensors[f"{at}_{name}"].shape)
            for name in ("packed", "scale", "shape")} == {
        "packed": ("int32", (32, 12)), "scale": ("float32", (32, 1)), "shape": ("int64", (2,))}
    # The first number in the lowest byte, plus 128; zeros behind the last.
    row = resolve(tmp_path / "new").read(at)[0] / tensors[f"{at}_scale"][0]
    assert [int(byte) - 128 for byte in tensors[f"{at}_packed"][0].view(np.uint8)[:46]] == np.rint(row).tolist()
    assert tensors[f"{at}_packed"][0].view(np.uint8)[46:].tolist() == [0, 0]


def test_the_files_of_a_folder_come_along_and_its_other_weights_do_not(folder, tmp_path):
    for name in ("generation_config.json", "special_tokens_map.json"):
        (folder.path / name).write_text(json.dumps({"eos_token_id": 258} if "generation" in name else {}))
    for name in ("LICENSE", "chat_template.jinja", "pytorch_model.bin", "notes.md"):
        (folder.path / name).write_text(f"this is {name}")
    (folder.path / "additional_chat_templates").mkdir()
    (folder.path / "additional_chat_templates" / "tools.jinja").write_text("tools")
    write_int8_folder(SafetensorsSource(folder.path), tmp_path / "new")
    new = tmp_path / "new"
    assert sorted(str(path.relative_to(new)) for path in new.rglob("*") if path.is_file()) == [
        "LICENSE", "additional_chat_templates/tools.jinja", "chat_template.jinja", "config.json",
        "generation_config.json", "model.safetensors", "special_tokens_map.json", "tokenizer.json",
        "tokenizer_config.json"]
    for name in ("LICENSE", "tokenizer.json", "chat_template.jinja", "additional_chat_templates/tools.jinja"):
        assert (new / name).read_bytes() == (folder.path / name).read_bytes()
    write_int8_folder(folder, new, overwrite=True)


def test_the_tokenizer_of_a_gguf_file_becomes_one_that_gives_the_same(tmp_path):
    source = resolve("SmolLM2-135M-Instruct")
    original = load_tokenizer(source.metadata)
    from jaxllm.quantization.tokenizer_files import tokenizer_files

    new = tmp_path / "new"
    new.mkdir()
    for name, content in tokenizer_files(source).items():
        (new / name).write_bytes(content)
    ours, theirs = load_tokenizer(new), transformers.AutoTokenizer.from_pretrained(new)
    messages = [{"role": "user", "content": TEXT}]
    for text in (TEXT, "<|im_start|>user\nHi<|im_end|>\n"):
        assert ours.encode(text) == original.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == original.decode(original.encode(text))
    assert ours.apply_chat_template(messages) == original.apply_chat_template(messages)
    assert (ours.bos_token_id, ours.eos_token_id, ours.pad_token_id) == (
        original.bos_token_id, original.eos_token_id, original.pad_token_id)


def test_a_gguf_file_without_a_tokenizer_becomes_a_folder_without_one(tmp_path):
    source = GGUFSource(write_mixture(tmp_path / "mixture.gguf"))
    write_int8_folder(source, tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "new" / "config.json").read_text())["vocab_size"] == VOCAB


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named_and_leave_nothing(tmp_path, value):
    source = SafetensorsSource(write_tiny_folder(tmp_path / "tiny", scale=value))
    with pytest.raises(CheckpointError, match=r"'model\.layers\.0\..*weight' cannot be quantized: it has values that"):
        write_int8_folder(source, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_matrices_that_lie_the_other_way_round_are_refused_by_name(tmp_path):
    source = SafetensorsSource(FIXTURES / "gpt2")
    with pytest.raises(UnsupportedModelError, match=r"h.0.attn.c_attn.weight' \[in, out\].*quantization='int8'"):
        write_int8_folder(source, tmp_path / "new")
    weights = params(source, "int8")["layers"][0]["attention"]["qkv"]["weight"]
    assert weights.blocks.shape == (144, 48)
    stored = source.read("transformer.h.0.attn.c_attn.weight").astype(np.float32)
    found = weights.blocks.view(np.int8) * np.asarray(weights.scale)[:, None]
    np.testing.assert_allclose(found, stored.T, atol=np.abs(stored).max() / 250)


def test_a_checkpoint_that_does_not_fit_its_config_is_refused_as_on_loading(tmp_path):
    source = SafetensorsSource(write_tiny_folder(tmp_path / "tiny"))
    source.tensors = {name: info for name, info in source.tensors.items() if "layers.1.mlp.down" not in name}
    with pytest.raises(CheckpointError, match=r"missing: model\.layers\.1\.mlp\.down_proj\.weight"):
        write_int8_folder(source, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def llama3_divisors(head_dim=32, theta=5000.0, factor=8.0):
    from jaxllm.models.config import RopeConfig

    scaled = RopeConfig(theta, "llama3", factor, 1.0, 4.0, 8192).inverse_frequencies(head_dim)
    return RopeConfig(theta).inverse_frequencies(head_dim) / scaled


def test_llama_3_s_rotary_scaling_is_recognized_and_other_divisors_are_refused(tmp_path):
    path, _ = write_llama_gguf(tmp_path / "three.gguf", extra={"rope_freqs.weight": llama3_divisors()})
    write_int8_folder(GGUFSource(path), tmp_path / "new")
    written, original = resolve(tmp_path / "new"), GGUFSource(path)
    assert isinstance(written, CompressedTensorsSource)
    assert written.config["rope_scaling"] == {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192}
    rope, expected = (open_model(source, "float32").model.config.rope.inverse_frequencies(32)
                      for source in (written, original))
    np.testing.assert_allclose(rope, expected, rtol=1e-6)
    divisors = np.linspace(1, 8, 16, dtype=np.float32)
    path, _ = write_llama_gguf(tmp_path / "odd.gguf", extra={"rope_freqs.weight": divisors})
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight is not Llama 3's scaling"):
        write_int8_folder(GGUFSource(path), tmp_path / "odd")
