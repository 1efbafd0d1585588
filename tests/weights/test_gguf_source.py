"""``GGUFSource``: a GGUF file seen as the Hugging Face checkpoint that it was made from."""

from __future__ import annotations

from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from weights.checkpoint_files import (
    FFN,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LLAMA_METADATA,
    VOCAB,
    permute_rows,
    write_gguf,
    write_llama_gguf,
)

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.models.registry import family_of
from jaxllm.weights import GGUFSource, resolve


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_1])
def test_every_tensor_is_the_one_that_was_converted(tmp_path: Path, kind: Type):
    """Bit for bit, the row order of query and key projections undone. Oracle: quantization before the conversion."""
    path, expected = write_llama_gguf(tmp_path / "model.gguf", kind)
    source = GGUFSource(path)
    assert set(source.tensors) == set(expected)
    for name, values in expected.items():
        info = source.tensors[name]
        assert info.shape == values.shape
        assert info.dtype == (kind.name if values.ndim == 2 else "F32")
        read = source.read(name)
        assert read.dtype == source.dtype(name)
        np.testing.assert_array_equal(read.astype(np.float32), values)


def test_plain_types_keep_their_dtype_and_quantized_ones_become_float32(tmp_path: Path):
    dtypes = {}
    for kind in (Type.F32, Type.F16, Type.BF16, Type.Q5_0):
        path, _ = write_llama_gguf(tmp_path / f"{kind.name}.gguf", kind)
        dtypes[kind.name] = GGUFSource(path).read("model.layers.0.mlp.up_proj.weight").dtype
    assert dtypes == {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "Q5_0": np.float32}


@pytest.mark.parametrize("name", ["self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_any_range_of_rows_is_that_part_of_the_whole(tmp_path: Path, name: str, dtype: type):
    path, expected = write_llama_gguf(tmp_path / "model.gguf", Type.Q8_0)
    source, name = GGUFSource(path), f"model.layers.0.{name}.weight"
    values = expected[name].astype(dtype)
    for start, stop in ((0, 1), (0, len(values)), (5, 6), (17, 50), (len(values) - 3, len(values))):
        out = np.empty((stop - start, values.shape[1]), dtype)
        source.read_rows(name, start, stop, out)
        np.testing.assert_array_equal(out, values[start:stop])


def test_config_says_what_the_metadata_and_tensors_say(tmp_path: Path):
    metadata = {**LLAMA_METADATA, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
                "tokenizer.ggml.padding_token_id": 0}
    path, _ = write_llama_gguf(tmp_path / "tiny.gguf", metadata=metadata)
    source = GGUFSource(path)
    assert source.name == "tiny"
    assert source.config == {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 5000.0,
        "rope_scaling": None, "max_position_embeddings": 512, "vocab_size": VOCAB, "tie_word_embeddings": True,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    }
    assert source.generation_config == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def test_an_output_matrix_means_untied_embeddings(tmp_path: Path):
    head = np.ones((VOCAB, HIDDEN), np.float32)
    path, _ = write_llama_gguf(tmp_path / "untied.gguf", extra={"output.weight": head})
    source = GGUFSource(path)
    assert source.config["tie_word_embeddings"] is False
    np.testing.assert_array_equal(source.read("lm_head.weight"), head)


def test_biases_are_reordered_like_their_matrices(tmp_path: Path):
    bias = np.arange(HIDDEN, dtype=np.float32)
    path, _ = write_llama_gguf(tmp_path / "bias.gguf", extra={"blk.0.attn_q.bias": permute_rows(bias, HEADS)})
    source = GGUFSource(path)
    assert source.config["attention_bias"] is True
    np.testing.assert_array_equal(source.read("model.layers.0.self_attn.q_proj.bias"), bias)


def test_rope_factors_become_divisors_and_not_a_tensor(tmp_path: Path):
    divisors = np.linspace(1, 8, HIDDEN // HEADS // 2, dtype=np.float32)
    path, expected = write_llama_gguf(tmp_path / "rope.gguf", extra={"rope_freqs.weight": divisors})
    source = GGUFSource(path)
    assert source.config["rope_frequency_divisors"] == divisors.tolist()
    assert set(source.tensors) == set(expected)


def test_yarn_is_read_without_an_attention_factor_of_its_own(tmp_path: Path):
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 128}
    metadata = {**LLAMA_METADATA, **{f"llama.rope.scaling.{name}": value for name, value in scaling.items()}}
    path, _ = write_llama_gguf(tmp_path / "a.gguf", metadata=metadata)
    rope = family_of(GGUFSource(path).config).decoder_config(GGUFSource(path).config).rope
    assert (rope.kind, rope.factor, rope.original_max_position) == ("yarn", 4.0, 128)
    path, _ = write_llama_gguf(tmp_path / "b.gguf", metadata={**metadata, "llama.rope.scaling.attn_factor": 2.0})
    with pytest.raises(UnsupportedModelError, match=r"rope\.scaling\.attn_factor' is 2\.0"):
        GGUFSource(path)


def test_linear_rope_scaling_is_read(tmp_path: Path):
    metadata = {**LLAMA_METADATA, "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    path, _ = write_llama_gguf(tmp_path / "linear.gguf", metadata=metadata)
    assert GGUFSource(path).config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}


def test_every_id_that_ends_a_turn_is_an_end(tmp_path: Path):
    tokens = ["<s>", "</s>", "<|im_end|>", "<|eot_id|>", "<|end|>"]
    metadata = {**LLAMA_METADATA, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 3,
                "tokenizer.ggml.tokens": tokens, "tokenizer.chat_template": "{{ content }}<|im_end|>"}
    path, _ = write_llama_gguf(tmp_path / "ends.gguf", metadata=metadata)
    # 1 and 3 by their ids, 2 since the template ends turns with it; 4 is in the vocabulary and nothing uses it.
    assert GGUFSource(path).generation_config["eos_token_id"] == [1, 3, 2]


def test_a_split_model_is_read_from_any_of_its_parts(tmp_path: Path):
    path, expected = write_llama_gguf(tmp_path / "whole.gguf", Type.Q8_0)
    tensors = [(tensor.name, tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors]
    for part, chosen in enumerate((tensors[:4], tensors[4:]), start=1):
        write_gguf(tmp_path / f"split-{part:05d}-of-00002.gguf", {name: (data, kind) for name, data, kind in chosen},
                   LLAMA_METADATA if part == 1 else {})
    source = GGUFSource(tmp_path / "split-00002-of-00002.gguf")
    assert set(source.tensors) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(source.read(name), values)
    (tmp_path / "split-00001-of-00002.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"one of 2 parts; missing beside it: split-00001-of-00002.gguf"):
        GGUFSource(tmp_path / "split-00002-of-00002.gguf")


def test_unknown_architectures_are_named_with_the_supported_ones(tmp_path: Path):
    path = write_gguf(tmp_path / "mamba.gguf", {}, {}, architecture="mamba")
    with pytest.raises(UnsupportedModelError, match=r"architecture 'mamba'; supported: .*llama"):
        GGUFSource(path)


def test_experts_without_their_number_and_partial_rotary_embeddings_are_refused(tmp_path: Path):
    path, _ = write_llama_gguf(tmp_path / "experts.gguf", metadata={**LLAMA_METADATA, "llama.expert_count": 8})
    with pytest.raises(CheckpointError, match=r"no 'llama.expert_used_count'"):
        GGUFSource(path)
    path, _ = write_llama_gguf(tmp_path / "partial.gguf", metadata={**LLAMA_METADATA, "llama.rope.dimension_count": 16})
    with pytest.raises(UnsupportedModelError, match=r"'llama.rope.dimension_count' is 16"):
        GGUFSource(path)


def test_missing_metadata_and_unknown_tensors_are_named(tmp_path: Path):
    metadata = {key: value for key, value in LLAMA_METADATA.items() if key != "llama.block_count"}
    path, _ = write_llama_gguf(tmp_path / "bare.gguf", metadata=metadata)
    with pytest.raises(CheckpointError, match=r"bare.gguf: .* no 'llama.block_count'"):
        GGUFSource(path)
    path, _ = write_llama_gguf(tmp_path / "extra.gguf", extra={"blk.0.attn_sinks.weight": np.ones(8, np.float32)})
    with pytest.raises(CheckpointError, match=r"'blk.0.attn_sinks.weight', which .* 'llama' does not have"):
        GGUFSource(path)


def test_the_packaged_smollm2_is_read_as_the_gguf_package_reads_it():
    source = resolve("SmolLM2-135M-Instruct")
    assert isinstance(source, GGUFSource)
    assert (source.config["hidden_size"], source.config["num_hidden_layers"]) == (576, 30)
    assert (source.config["rope_theta"], source.config["tie_word_embeddings"]) == (100000.0, True)
    assert source.generation_config["eos_token_id"] == 2
    reader = gguf.GGUFReader(source.path)
    assert len(source.tensors) == len(reader.tensors) == 272
    theirs = {tensor.name: tensor for tensor in reader.tensors}
    for layer in (0, 29):
        for ours, name, heads in (("self_attn.q_proj", "attn_q", 9), ("self_attn.k_proj", "attn_k", 3),
                                  ("self_attn.v_proj", "attn_v", 0), ("mlp.down_proj", "ffn_down", 0)):
            tensor = theirs[f"blk.{layer}.{name}.weight"]
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            read = source.read(f"model.layers.{layer}.{ours}.weight")
            np.testing.assert_array_equal(permute_rows(read, heads) if heads else read, values)
    embedding = theirs["token_embd.weight"]
    rows = np.empty((100, 576), np.float32)
    source.read_rows("model.embed_tokens.weight", 40_000, 40_100, rows)
    np.testing.assert_array_equal(rows, gguf.quants.dequantize(embedding.data[40_000:40_100], embedding.tensor_type))
