"""``save_pretrained`` and ``convert(to="safetensors")``: what is written is what was loaded, under the same names."""

from __future__ import annotations

import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from models.fixture_models import FIXTURES, NAMES
from param_layouts import LAYOUTS
from safetensors.numpy import load_file
from support import bits, greedy
from test_conversion import SIZES, assert_same_bits, in_dtype, params_of
from tiny_folder import CONFIG, write_tiny_folder
from weights.quantized_llama import write_mixture

import jaxllm
from jaxllm import LLM, EngineError, ParameterError, UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.registry import family_of
from jaxllm.weights.checkpoint_tensors import _tensor
from jaxllm.weights.spec import ParamSpec, Piece


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, **SIZES)


def tensors_of(folder):
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}


def assert_same_tensors(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if name.endswith("e_score_correction_bias"):
            value = value.astype(np.float32)  # as published checkpoints have it, and the model in any case
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert found[name].tobytes() == value.tobytes(), name


REPRESENTATIVES = [name if name in ("bloom", "cohere", "gpt2", "qwen3", "stablelm_12b") else pytest.param(
    name, marks=pytest.mark.sweep) for name in NAMES if name != "gpt_oss_mxfp4"]


@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_every_family_is_written_as_it_was(name, tmp_path):
    jaxllm.convert(FIXTURES / name, tmp_path / "new", to="safetensors")
    assert_same_tensors(load_file(tmp_path / "new" / "model.safetensors"),
                        load_file(FIXTURES / name / "model.safetensors"))
    dtype = str(next(iter(load_file(FIXTURES / name / "model.safetensors").values())).dtype)
    assert_same_bits(params_of(tmp_path / "new", dtype), params_of(FIXTURES / name, dtype))
    configs = [json.loads((place / "config.json").read_text()) for place in (tmp_path / "new", FIXTURES / name)]
    for config in configs:
        for key in ("dtype", "torch_dtype"):
            config.pop(key, None)
    assert configs[0] == configs[1]


def test_a_piece_that_cannot_be_undone_is_named():
    spec = ParamSpec((4, 2), np.dtype(np.float32), (None, None))
    with pytest.raises(UnsupportedModelError, match=r"odd\.weight: how it is written is not known"):
        _tensor(Piece("odd.weight", lambda tensor: tensor[::2]), np.zeros((4, 2)), slice(0, 4), spec)


def test_a_loaded_model_is_written_with_its_tokenizer_and_generates_the_same(llm, folder, tmp_path):
    llm.save_pretrained(tmp_path / "new")
    assert_same_tensors(tensors_of(tmp_path / "new"), tensors_of(folder))
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "new" / name).read_bytes() == (folder / name).read_bytes()
    again = LLM(tmp_path / "new", **SIZES)
    outputs = [each.generate(["hello"], greedy(8, logprobs=2), use_tqdm=False)[0] for each in (llm, again)]
    assert bits(outputs[0]) == bits(outputs[1])
    assert outputs[0].outputs[0].text == outputs[1].outputs[0].text


def test_transformers_reads_it(llm, tmp_path):
    transformers = pytest.importorskip("transformers")
    llm.save_pretrained(tmp_path / "new")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "new")
    assert (config.model_type, config.hidden_size, str(config.dtype).split(".")[-1]) == ("llama", 32, "float32")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert tokenizer.encode("hello", add_special_tokens=False) == llm.tokenizer.encode("hello")


def test_generation_defaults_are_kept(folder, tmp_path):
    defaults = {"temperature": 0.5, "eos_token_id": [257, 258]}
    model = in_dtype(folder, tmp_path / "model", ("float32",))
    (model / "generation_config.json").write_text(json.dumps(defaults))
    LLM(model, **SIZES).save_pretrained(tmp_path / "new")
    assert json.loads((tmp_path / "new" / "generation_config.json").read_text()) == defaults


@pytest.mark.sweep
def test_the_weights_are_those_of_the_engine_in_its_dtype(folder, tmp_path):
    LLM(folder, **{**SIZES, "dtype": "bfloat16"}).save_pretrained(tmp_path / "new")
    expected = {name: value.astype(jnp.bfloat16) for name, value in tensors_of(folder).items()}
    assert_same_tensors(tensors_of(tmp_path / "new"), expected)
    assert json.loads((tmp_path / "new" / "config.json").read_text())["dtype"] == "bfloat16"


def test_large_models_are_written_in_several_files_with_an_index(llm, folder, tmp_path):
    llm.save_pretrained(tmp_path / "new", max_shard_size="16K")
    files = sorted((tmp_path / "new").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: path.name for path in files for name in load_file(path)}
    assert_same_tensors(tensors_of(tmp_path / "new"), tensors_of(folder))
    assert_same_bits(params_of(tmp_path / "new", "float32"), params_of(folder, "float32"))


@pytest.mark.parametrize("layout", [name if name == "stacked" else pytest.param(
    name, marks=pytest.mark.sweep) for name in LAYOUTS])
def test_live_parameters_are_written_as_they_are_now(llm, folder, tmp_path, layout):
    config = family_of(CONFIG).decoder_config(CONFIG)
    own = params_of(folder, "float32")
    live = LLM.from_params(CONFIG, LAYOUTS[layout](config, own), llm.tokenizer, **SIZES)
    live.save_pretrained(tmp_path / "new")
    assert_same_tensors(tensors_of(tmp_path / "new"), tensors_of(folder))
    doubled = jax.tree.map(lambda leaf: 2 * leaf, own)
    live.update_params(LAYOUTS[layout](config, doubled))
    live.save_pretrained(tmp_path / "new", overwrite=True)
    assert_same_tensors(tensors_of(tmp_path / "new"), {name: 2 * value for name, value in tensors_of(folder).items()})
    again = LLM(tmp_path / "new", **SIZES)
    assert again.tokenizer.encode("hello") == llm.tokenizer.encode("hello")
    assert again.tokenizer.chat_templates == llm.tokenizer.chat_templates
    assert again.tokenizer.eos_token_id == llm.tokenizer.eos_token_id


def test_without_a_tokenizer_none_is_written(folder, tmp_path):
    live = LLM.from_params(CONFIG, params_of(folder, "float32"), **SIZES)
    live.save_pretrained(tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["config.json", "model.safetensors"]


def test_old_parameters_are_not_kept_alive_for_it(folder):
    own = params_of(folder, "float32")
    live = LLM.from_params(CONFIG, own, **SIZES)
    assert live._origin.source().leaves == {}


def test_a_gguf_file_becomes_a_folder(tmp_path):
    model = write_mixture(tmp_path / "mixture.gguf")
    jaxllm.convert(model, tmp_path / "new", to="safetensors")
    assert_same_bits(params_of(tmp_path / "new", "float32"), params_of(model, "float32"))


@pytest.mark.parametrize("quantization", ["int8", pytest.param("gguf", marks=pytest.mark.sweep)])
def test_quantized_parameters_are_refused_naming_what_to_do(folder, tmp_path, quantization):
    model = folder if quantization == "int8" else write_mixture(tmp_path / "mixture.gguf")
    quantized = LLM(model, quantization=quantization, skip_tokenizer_init=True, max_num_seqs=2, max_model_len=64,
                    max_num_batched_tokens=32)
    with pytest.raises(UnsupportedModelError, match=r"is kept as .*quantization='none'.*jaxllm\.quantize"):
        quantized.save_pretrained(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_written_is_refused(llm, folder, tmp_path):
    own = params_of(folder, "float32")
    config = family_of(CONFIG).decoder_config(CONFIG)
    assert isinstance(config, DecoderConfig)
    with pytest.raises(ParameterError, match="a Hugging Face config in from_params"):
        LLM.from_params(config, own, **SIZES).save_pretrained(tmp_path / "new")
    with pytest.raises(ParameterError, match="another folder than the model itself"):
        llm.save_pretrained(folder, overwrite=True)
    (tmp_path / "there").mkdir()
    with pytest.raises(ParameterError, match=r"folder=.*not there yet, or overwrite"):
        llm.save_pretrained(tmp_path / "there")
    (tmp_path / "there" / "thesis.tex").touch()
    with pytest.raises(ParameterError, match=r"it has thesis\.tex"):
        llm.save_pretrained(tmp_path / "there", overwrite=True)
    for value in ("", 3):
        with pytest.raises(ParameterError, match="folder"):
            llm.save_pretrained(value)
    with pytest.raises(ParameterError, match="max_shard_size"):
        llm.save_pretrained(tmp_path / "new", max_shard_size=0)
    with pytest.raises(ParameterError, match=r"to='pickle'.*'orbax' or 'safetensors'"):
        jaxllm.convert(folder, tmp_path / "new", to="pickle")
    assert sorted(os.listdir(tmp_path)) == ["there"]


def test_an_engine_without_weights_says_so(folder, tmp_path):
    asleep = LLM(folder, **SIZES)
    asleep.sleep(2)
    with pytest.raises(EngineError, match="no weights"):
        asleep.save_pretrained(tmp_path / "new")


def test_a_heads_checkpoint_is_refused(folder, tmp_path):
    model = in_dtype(folder, tmp_path / "model", ("float32",))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaModel"]}))
    with pytest.raises(ParameterError, match="a language model, as another head would be left out"):
        LLM(model, **SIZES).save_pretrained(tmp_path / "new")


def test_arrays_of_numpy_are_written_too(folder, tmp_path):
    own = jax.tree.map(np.asarray, params_of(folder, "float32"))
    LLM.from_params(CONFIG, own, **SIZES).save_pretrained(tmp_path / "new")
    assert_same_tensors(tensors_of(tmp_path / "new"), tensors_of(folder))
