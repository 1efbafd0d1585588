"""Weights that stay quantized: which do, what is in memory, and that it means what decoding on loading gives."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from tiny_folder import write_tiny_folder
from weights.checkpoint_files import FFN, HIDDEN, KV_HEADS, VOCAB
from weights.quantized_llama import ODD, OTHER, PLAIN, write_mixture

from jaxllm.engine.sizes import cache_spec
from jaxllm.errors import CheckpointError, ParameterError
from jaxllm.loading import load_weights, open_model
from jaxllm.runner.keys import layer_chunks
from jaxllm.weights import GGUFSource, SafetensorsSource
from jaxllm.weights.int8 import quantize_int8
from jaxllm.weights.quantization import check_quantization
from jaxllm.weights.rows import QuantizedRows, RowParts
from pallas_kernels import dequantize


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return GGUFSource(write_mixture(tmp_path_factory.mktemp("gguf") / "model.gguf"))


def flat(params):
    found, _ = jax.tree_util.tree_flatten_with_path(
        params, is_leaf=lambda leaf: isinstance(leaf, QuantizedRows | RowParts))
    return {".".join(str(part.key) for part in path): leaf for path, leaf in found}


def loaded(source, quantization, dtype="float32"):
    opened = open_model(source, dtype, quantization=quantization)
    return opened.model, flat(load_weights(source, opened))


def numbers(leaf):
    if isinstance(leaf, RowParts):
        return np.concatenate([numbers(part) for part in leaf.parts])
    if isinstance(leaf, QuantizedRows):
        return np.asarray(dequantize(leaf.blocks, leaf.kind, leaf.scale))
    return np.asarray(leaf)


def test_what_is_kept_has_the_numbers_that_decoding_gives(mixture):
    (_, plain), (_, kept) = loaded(mixture, None), loaded(mixture, "gguf")
    assert plain.keys() == kept.keys()
    for path, leaf in kept.items():
        np.testing.assert_array_equal(numbers(leaf), plain[path], err_msg=path)


def test_each_tensor_is_kept_as_it_is_stored(mixture):
    model, kept = loaded(mixture, "gguf")
    at = "layers.4."
    assert kept["embedding.weight"].kind == "Q6_K"
    assert [type(part).__name__ for part in kept[f"{at}attention.qkv.weight"].parts] == ["QuantizedRows", "ArrayImpl"]
    rows = [(part.kind, part.rows) for part in model.specs[f"{at}attention.qkv.weight"].parts]
    assert rows == [("Q4_0", HIDDEN + KV_HEADS * 32), (None, KV_HEADS * 32)]
    assert kept[f"{at}mlp.gate_up.weight"].blocks.shape == (2 * FFN, HIDDEN // 32 * 34)
    assert isinstance(kept[f"{at}mlp.down.weight"], jax.Array)  # IQ4_NL has no kernel
    assert isinstance(kept[f"{at}mlp_norm.weight"], jax.Array)
    assert [part.kind for part in kept["layers.1.attention.qkv.weight"].parts] == ["Q4_K", "Q6_K"]
    assert kept["layers.0.attention.qkv.weight"].kind == "Q4_K"


def test_the_description_has_the_sizes_of_what_is_loaded(mixture):
    for quantization in ("gguf", "gguf-a8", "int8"):
        model, kept = loaded(mixture, quantization, "bfloat16")
        for path, leaf in kept.items():
            assert model.specs[path].nbytes == sum(array.nbytes for array in jax.tree.leaves(leaf)), path
            like = jax.tree.map(lambda array: (array.shape, array.dtype), (leaf, model.specs[path].abstract()))
            assert like[0] == like[1]
    assert model.num_parameters == open_model(mixture, "bfloat16").model.num_parameters


def test_weights_take_the_bytes_of_the_file(tmp_path):
    source = GGUFSource(write_mixture(tmp_path / "m.gguf", [PLAIN, OTHER], "Q8_0"))
    matrices = sum(info.nbytes for info in source.tensors.values() if len(info.shape) == 2)
    specs = open_model(source, "bfloat16", quantization="gguf").model.specs
    assert sum(spec.nbytes for spec in specs.values() if len(spec.shape) == 2) == matrices


def test_layers_of_the_same_kinds_share_their_programs(mixture):
    model = open_model(mixture, "bfloat16", quantization="gguf").model
    assert model.layer_kinds == [0, 1, 0, 1, 4]
    assert [chunk.kind for chunk in layer_chunks(model, cache_spec(model, "auto"), 1)] == [0, 1, 0, 1, 2]
    plain = open_model(mixture, "bfloat16").model
    assert {chunk.kind for chunk in layer_chunks(plain, cache_spec(plain, "auto"), 1)} == {0}


def test_int8_is_the_nearest_of_255_steps_of_each_row(tmp_path):
    source = SafetensorsSource(write_tiny_folder(tmp_path / "tiny"))
    (_, plain), (model, kept) = loaded(source, None), loaded(source, "int8")
    assert [path for path, spec in model.specs.items() if not spec.parts] == [
        path for path in plain if path.endswith("norm.weight")]
    for path, leaf in kept.items():
        if isinstance(leaf, QuantizedRows):
            step = np.abs(plain[path]).max(axis=1, keepdims=True) / 127
            np.testing.assert_allclose(leaf.scale[:, None], step, rtol=1e-6)
            # Half a step, and the roundings of the division and the product.
            assert (np.abs(numbers(leaf) - plain[path]) <= step * (0.5 + 1e-4)).all()
            assert np.asarray(leaf.blocks).view(np.int8).min() >= -127


def test_int8_of_zeros_is_zeros():
    codes, scale = np.full((2, 4), 9, np.uint8), np.full(2, 9, np.float32)
    quantize_int8(np.array([[0, 0, 0, 0], [1, -2, 0, 4]], np.float32), codes, scale)
    assert scale.tolist() == [0, np.float32(4) / np.float32(127)]
    assert codes.view(np.int8).tolist() == [[0, 0, 0, 0], [32, -64, 0, 127]]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_int8_of_what_is_not_finite_is_refused_by_name(tmp_path, value):
    folder = write_tiny_folder(tmp_path / "tiny", scale=value)
    source = SafetensorsSource(folder)
    with pytest.raises(CheckpointError, match=r"cannot load '.*weight': it has values that are infinite or no numbers"):
        load_weights(source, open_model(source, "float32", quantization="int8"))


@pytest.mark.parametrize("value", ["awq", "fp8", "GGUF", "gguf-a4", 8, True, ["gguf"]])
def test_other_choices_are_refused(value):
    with pytest.raises(ParameterError, match=r"None .*, 'none' .*, 'gguf' .* or 'int8'") as caught:
        check_quantization(value)
    assert (caught.value.parameter, caught.value.value) == ("quantization", value)


def test_activations_are_rounded_where_blocks_are_kept(mixture):
    kept, rounded = (loaded(mixture, name)[1] for name in ("gguf", "gguf-a8"))
    for path, leaf in kept.items():
        parts, others = (getattr(each, "parts", (each,)) for each in (leaf, rounded[path]))
        for part, other in zip(parts, others, strict=True):
            assert isinstance(other, QuantizedRows) == isinstance(part, QuantizedRows), path
            if isinstance(part, QuantizedRows):
                assert other.kind == part.kind + "_A8"
                np.testing.assert_array_equal(other.blocks, part.blocks)


@pytest.mark.parametrize("name", ["gguf", "gguf-a8"])
def test_gguf_needs_a_gguf_file(tmp_path, name):
    source = SafetensorsSource(write_tiny_folder(tmp_path / "tiny"))
    with pytest.raises(ParameterError, match=f"only for .gguf files, which {source.path} is not; 'int8'"):
        open_model(source, "float32", quantization=name)


def test_random_weights_can_be_int8_and_have_no_blocks(mixture):
    model = open_model(mixture, "bfloat16", quantization="int8", has_weights=False).model
    assert flat(model.init())["embedding.weight"].blocks.shape == (VOCAB, HIDDEN)
    with pytest.raises(ParameterError, match="None or 'int8' where weights are random"):
        open_model(mixture, "bfloat16", quantization="gguf", has_weights=False)
    with pytest.raises(ParameterError, match=r"quantization='gguf-a8' .*None or 'int8' where weights are random"):
        open_model(mixture, "bfloat16", quantization="gguf-a8", has_weights=False)


def test_plain_files_stay_plain(tmp_path):
    source = GGUFSource(write_mixture(tmp_path / "m.gguf", [dict.fromkeys(ODD, "F16")], "F16"))
    assert open_model(source, "bfloat16", quantization="gguf").model.quantized == {}
