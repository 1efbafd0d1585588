"""Folders of Orbax: what ``convert`` writes and trainers save, and that loading them gives the same bits."""

from __future__ import annotations

import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax import checkpoint
from param_layouts import LAYOUTS
from safetensors.numpy import load_file, save_file
from support import bits, greedy
from tiny_folder import CONFIG, write_tiny_folder
from weights.quantized_llama import write_mixture

import jaxllm
from jaxllm import LLM, CheckpointError, ParameterError, UnsupportedModelError
from jaxllm.loading import load_weights, open_model
from jaxllm.models.registry import family_of
from jaxllm.parallel.partition import Partition
from jaxllm.runner.weights import Weights
from jaxllm.weights import SafetensorsSource, resolve
from jaxllm.weights.orbax import OrbaxSource

SIZES = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 96, "block_size": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


def in_dtype(folder, target, dtypes):
    """A copy of a folder with its tensors in other dtypes: of matrices, of others."""
    shutil.copytree(folder, target)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: value.astype(jnp.dtype(dtypes[0 if value.ndim > 1 else -1])) for name, value in tensors.items()},
              target / "model.safetensors")
    return target


def params_of(model, dtype, **options):
    source = resolve(model)
    opened = open_model(source, dtype, **options)
    return Weights(Partition(opened.model), load_weights(source, opened)).params


def assert_same_bits(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize(
    "dtypes", [("float32",), ("bfloat16",), ("float16",), ("bfloat16", "float32")], ids=" and ".join)
def test_a_round_trip_keeps_every_bit(folder, tmp_path, dtypes):
    model = in_dtype(folder, tmp_path / "model", dtypes)
    kept = "float32" if len(dtypes) > 1 else dtypes[0]
    found = jaxllm.convert(model, tmp_path / "orbax")
    expected = params_of(model, kept)
    assert found == jaxllm.Converted(14, sum(leaf.nbytes for leaf in jax.tree.leaves(expected)), kept)
    assert isinstance(resolve(tmp_path / "orbax"), OrbaxSource)
    assert_same_bits(params_of(tmp_path / "orbax", kept), expected)
    again = jaxllm.convert(tmp_path / "orbax", tmp_path / "again")
    assert again == found
    assert_same_bits(params_of(tmp_path / "again", kept), expected)


def test_another_dtype_is_that_of_loading_the_original_in_it(folder, tmp_path):
    assert jaxllm.convert(folder, tmp_path / "orbax", dtype="bfloat16").dtype == "bfloat16"
    expected = params_of(folder, "bfloat16")
    assert_same_bits(params_of(tmp_path / "orbax", "bfloat16"), expected)
    jaxllm.convert(folder, tmp_path / "orbax", overwrite=True)
    assert_same_bits(params_of(tmp_path / "orbax", "bfloat16"), expected)
    assert json.loads((tmp_path / "orbax" / "config.json").read_text())["dtype"] == "float32"


def test_quantized_matrices_are_decoded(tmp_path):
    model = write_mixture(tmp_path / "mixture.gguf")
    assert jaxllm.convert(model, tmp_path / "orbax").dtype == "float32"
    assert_same_bits(params_of(tmp_path / "orbax", "float32"), params_of(model, "float32"))


def test_a_folder_that_was_written_generates_and_scores_the_same(folder, tmp_path):
    jaxllm.convert(folder, tmp_path / "orbax")
    llms = [LLM(model, **SIZES) for model in (folder, tmp_path / "orbax")]
    outputs = [llm.generate(["hello", "a"], greedy(8), use_tqdm=False) for llm in llms]
    assert [bits(output) for output in outputs[0]] == [bits(output) for output in outputs[1]]
    assert outputs[0][0].outputs[0].text == outputs[1][0].outputs[0].text
    assert llms[0].score(["a"], ["bc"], use_tqdm=False) == llms[1].score(["a"], ["bc"], use_tqdm=False)
    assert llms[0].engine.eos_token_ids == llms[1].engine.eos_token_ids


def test_int8_is_made_of_it_as_of_the_original(folder, tmp_path):
    jaxllm.convert(folder, tmp_path / "orbax")
    found, expected = (params_of(model, "float32", quantization="int8") for model in (tmp_path / "orbax", folder))
    assert_same_bits(found, expected)


@pytest.mark.parametrize("place", ["", "params", "state"])
@pytest.mark.parametrize("layout", [name if name in ("nnx.State", "stacked", "Hugging Face") else pytest.param(
    name, marks=pytest.mark.sweep) for name in LAYOUTS])
def test_what_trainers_save_is_loaded(folder, tmp_path, layout, place):
    config = family_of(CONFIG).decoder_config(CONFIG)
    own = params_of(folder, "float32")
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "run" / place, LAYOUTS[layout](config, own), force=True)
    (tmp_path / "run" / "config.json").write_text(json.dumps(CONFIG))
    assert_same_bits(params_of(tmp_path / "run", "float32"), own)


def test_a_step_of_a_checkpoint_manager_is_loaded(folder, tmp_path):
    own = params_of(folder, "float32")
    with checkpoint.CheckpointManager(tmp_path / "run") as manager:
        manager.save(7, args=checkpoint.args.StandardSave(own))
    shutil.copy(folder / "config.json", tmp_path / "run" / "7")
    assert_same_bits(params_of(tmp_path / "run" / "7", "float32"), own)


def saved(target, params, kind=checkpoint.StandardCheckpointer):
    with kind() as checkpointer:
        checkpointer.save(target / "params", params)
    (target / "config.json").write_text(json.dumps(CONFIG))
    return target


def test_a_tree_that_another_of_orbaxs_classes_saved_is_loaded(folder, tmp_path):
    own = params_of(folder, "float32")
    assert_same_bits(params_of(saved(tmp_path / "model", own, checkpoint.PyTreeCheckpointer), "float32"), own)


def test_a_tree_that_does_not_fit_is_refused_before_it_is_read(folder, tmp_path):
    own = {**params_of(folder, "float32"), "more": np.ones(3, np.float32)}
    own["norm"] = {"weight": np.ones(5, np.float32)}
    with pytest.raises(CheckpointError) as caught:
        LLM(saved(tmp_path / "model", own), **SIZES)
    assert str(caught.value).splitlines()[1:] == [
        "  unexpected: more, of shape [3]",
        "  wrong shape: norm.weight should be [32], params has norm.weight [5]",
    ]


def test_a_tree_that_holds_more_than_arrays_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="'name' is no array"):
        resolve(saved(tmp_path / "model", {"name": "a text", "x": np.ones(3)}, checkpoint.PyTreeCheckpointer))


def test_numbers_without_a_floating_point_are_refused(folder, tmp_path):
    own = params_of(folder, "float32")
    own["norm"]["weight"] = np.ones(32, np.int32)
    with pytest.raises(CheckpointError, match=r"wrong type: norm\.weight of shape \[32\] holds int32"):
        open_model(resolve(saved(tmp_path / "model", own)), "float32")


def test_a_damaged_tree_is_an_error_of_the_checkpoint(folder, tmp_path):
    jaxllm.convert(folder, tmp_path / "orbax")
    for file in (tmp_path / "orbax" / "params").rglob("d/*"):
        file.write_bytes(file.read_bytes()[:10])
    with pytest.raises(CheckpointError, match="cannot be read by Orbax"):
        params_of(tmp_path / "orbax", "float32")
    (tmp_path / "orbax" / "params" / "_METADATA").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read by Orbax"):
        resolve(tmp_path / "orbax")


def test_of_several_trees_that_of_the_parameters_is_meant(folder, tmp_path):
    own = params_of(folder, "float32")
    model = saved(tmp_path / "model", own)
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(model / "optimizer", {"x": np.ones(3)})
    assert_same_bits(params_of(model, "float32"), own)
    (model / "params").rename(model / "weights")
    with pytest.raises(CheckpointError, match="of which none is called params: optimizer, weights"):
        resolve(model)


def test_without_a_config_it_is_no_model(folder, tmp_path):
    jaxllm.convert(folder, tmp_path / "orbax")
    (tmp_path / "orbax" / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        resolve(tmp_path / "orbax")


def test_without_the_package_the_extra_is_named(folder, tmp_path, monkeypatch):
    jaxllm.convert(folder, tmp_path / "orbax")
    monkeypatch.setitem(sys.modules, "orbax", None)
    for call in (lambda: resolve(tmp_path / "orbax"), lambda: jaxllm.convert(folder, tmp_path / "new")):
        with pytest.raises(UnsupportedModelError, match=r"pip install 'jaxllm\[orbax\]'"):
            call()
    assert not (tmp_path / "new").exists()
    assert isinstance(resolve(folder), SafetensorsSource)


def test_a_target_that_is_there_is_replaced_only_when_told_to(folder, tmp_path):
    jaxllm.convert(folder, tmp_path / "orbax")
    with pytest.raises(ParameterError, match="a folder that is not there yet, or overwrite"):
        jaxllm.convert(folder, tmp_path / "orbax")
    with pytest.raises(ParameterError, match="another folder than the model itself"):
        jaxllm.convert(tmp_path / "orbax", tmp_path / "orbax", overwrite=True)
    jaxllm.convert(folder, tmp_path / "orbax", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["orbax"]


@pytest.mark.parametrize(("options", "parameter"), [
    ({"dtype": "int8"}, "dtype"), ({"dtype": 3}, "dtype"), ({"revision": "main"}, "revision"),
    ({"target": ""}, "target"), ({"target": None}, "target"), ({"model": 3}, "model"),
])
def test_what_is_not_allowed_is_named(folder, tmp_path, options, parameter):
    with pytest.raises(ParameterError) as caught:
        jaxllm.convert(**{"model": folder, "target": tmp_path / "new", **options})
    assert caught.value.parameter == parameter
    assert not list(tmp_path.iterdir())


def test_quantizing_a_folder_of_orbax_names_another_way(folder, tmp_path):
    jaxllm.convert(folder, tmp_path / "orbax")
    with pytest.raises(ParameterError, match="quantized while it is loaded"):
        jaxllm.quantize(tmp_path / "orbax", tmp_path / "int8", "int8")
