"""Live parameters that do not fit, and what else is refused beside them, by name."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from live_models import PLAIN, SIZES, answers, decoder_config, made
from param_layouts import hugging_face, stacked
from support import bits
from tiny_folder import CONFIG

from jaxllm import LLM, ParameterError
from jaxllm.models.decoder import Decoder
from jaxllm.weights.trees import flatten


def test_all_that_does_not_fit_is_listed_at_once_and_the_old_parameters_go_on():
    config, own = made()
    llm = LLM.from_params(config, own, **SIZES)
    expected = [bits(output) for output in answers(llm)]
    wrong = flatten(own)
    del wrong["layers.1.mlp.down.weight"]
    wrong["layers.2.mlp.down.weight"] = jnp.ones((3, 5))
    wrong["embedding.weight"] = wrong["embedding.weight"][1:]
    wrong["norm.weight"] = wrong["norm.weight"].astype(jnp.int32)
    wrong["layers.0.mlp_norm.weight"] = "a text"
    for refuse in (llm.update_params, lambda params: LLM.from_params(config, params, **SIZES)):
        with pytest.raises(ParameterError) as caught:
            refuse(wrong)
        assert caught.value.parameter == "params"
        assert str(caught.value).splitlines()[1:] == [
            "  missing: layers.1.mlp.down.weight, of shape [32, 48]",
            "  unexpected: layers.2.mlp.down.weight, of shape [3, 5]",
            "  wrong type: layers.0.mlp_norm.weight is a str, not an array",
            "  wrong type: norm.weight of shape [32] holds int32, not floating-point numbers",
            "  wrong shape: embedding.weight should be [264, 32], params has embedding.weight [263, 32]",
        ]
    assert [bits(output) for output in answers(llm)] == expected


def test_what_does_not_fit_is_named_in_the_layout_that_it_is_in():
    config, own = made()
    theirs = hugging_face(config, own)
    k = theirs.pop("model.layers.0.self_attn.k_proj.weight")
    theirs["model.layers.1.self_attn.k_proj.weight"] = k[:, 1:]
    with pytest.raises(ParameterError) as caught:
        LLM.from_params(config, theirs, **SIZES)
    assert str(caught.value).splitlines()[1:] == [
        "  missing: model.layers.0.self_attn.k_proj.weight, of rows of layers.0.attention.qkv.weight, which has shape "
        "[64, 32]",
        "  wrong shape: layers.1.attention.qkv.weight should be [64, 32], params has "
        "model.layers.1.self_attn.q_proj.weight [32, 32], model.layers.1.self_attn.k_proj.weight [16, 31], "
        "model.layers.1.self_attn.v_proj.weight [16, 32]",
    ]
    layers = stacked(own)
    down = layers["layers"]["mlp"].pop("down")
    layers["layers"]["mlp_norm"] = {"weight": jnp.ones((3, 32))}
    with pytest.raises(ParameterError) as caught:
        LLM.from_params(config, layers, **SIZES)
    assert str(caught.value).splitlines()[1:] == [
        f"  missing: layers.mlp.down.weight, of shape {list(down['weight'].shape)}",
        "  wrong shape: layers.mlp_norm.weight should be [2, 32], params has layers.mlp_norm.weight [3, 32]",
    ]


def test_long_lists_of_misfits_are_cut():
    config, own = made()
    with pytest.raises(ParameterError, match=r"and 5 more$"):
        LLM.from_params(config, {**own, **{f"x{number}": jnp.ones(1) for number in range(35)}}, **SIZES)


def test_a_config_of_another_model_is_refused():
    _, own = made()
    with pytest.raises(ParameterError, match=r"embedding.weight should be \[300, 32\]"):
        LLM.from_params({**CONFIG, "vocab_size": 300}, own, **SIZES)
    with pytest.raises(ParameterError, match=r"missing: layers.2.attention.qkv.weight"):
        LLM.from_params({**CONFIG, "num_hidden_layers": 3}, own, **SIZES)
    with pytest.raises(ParameterError, match=r"missing: head.weight, of shape \[264, 32\]"):
        LLM.from_params({**CONFIG, "tie_word_embeddings": False}, own, **SIZES)


def test_a_tied_checkpoints_head_is_not_asked_about():
    config, own = made()
    theirs = hugging_face(config, own)
    LLM.from_params(config, {**theirs, "lm_head.weight": theirs["model.embed_tokens.weight"]}, **SIZES)


@pytest.mark.parametrize(("config", "message"), [
    (None, "config=None"), (3, "config=3"), ("", "config=''"),
    ({"architectures": ["NoSuchModel"]}, "'NoSuchModel' is not supported"), ("no/such/folder/x", "no such file"),
])
def test_a_config_that_is_none_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        LLM.from_params(config, {}, **SIZES)


def test_a_config_of_no_family_is_refused():
    config, own = made()
    object.__setattr__(config, "family", "none")
    with pytest.raises(ParameterError, match=r"config.family='none' is not allowed: one of llama, "):
        LLM.from_params(config, own, **SIZES)


@pytest.mark.parametrize(("params", "message"), [
    ([1, 2], "a nested dict of arrays"), (jnp.ones(3), "a nested dict of arrays"), ({("a", "b"): 1}, "strings"),
    ({1.5: jnp.ones(3)}, "strings"), ({"a.b": 1, "a": {"b": 2}}, "differ"), (None, "missing: embedding.weight"),
    ({}, "missing: embedding.weight"),
])
def test_what_is_no_tree_of_parameters_is_refused(params, message):
    with pytest.raises(ParameterError, match=message) as caught:
        LLM.from_params(decoder_config(), params, **SIZES)
    assert caught.value.parameter == "params"


def test_a_module_is_refused_in_favour_of_its_state():
    config = decoder_config()
    with pytest.raises(ParameterError, match=r"nnx\.state\(module"):
        LLM.from_params(config, Decoder(config, jnp.float32), **SIZES)
    with pytest.raises(ParameterError, match=r"embedding.weight is a ShapeDtypeStruct, not an array"):
        LLM.from_params(config, nnx.state(Decoder(config, jnp.float32)), **SIZES)


def test_arrays_that_are_gone_or_not_there_yet_are_named():
    config, own = made()
    llm = LLM.from_params(config, own, **SIZES)
    given = jax.tree.map(jnp.copy, own)
    given["norm"]["weight"].delete()
    with pytest.raises(ParameterError, match=r"norm.weight was deleted or donated"):
        llm.update_params(given)
    with pytest.raises(ParameterError, match=r"embedding.weight is being traced by JAX"):
        jax.jit(llm.update_params)(own)
    answers(llm)


@pytest.mark.parametrize("name", ["model", "revision", "load_format", "skip_tokenizer_init"])
def test_arguments_that_say_where_a_checkpoint_is_are_refused(name):
    config, own = made()
    with pytest.raises(ParameterError, match=rf"{name}='x' is not allowed: an argument of LLM\(\.\.\.\) alone"):
        LLM.from_params(config, own, **{name: "x"})


def test_other_arguments_are_those_of_the_class():
    config, own = made()
    with pytest.raises(ParameterError, match="max_num_seqs=0"):
        LLM.from_params(config, own, **{**SIZES, "max_num_seqs": 0})
    with pytest.raises(ParameterError, match="quantization='gguf'"):
        LLM.from_params(config, own, quantization="gguf", **SIZES)
    with pytest.raises(ParameterError, match="no_such_argument=1 is not allowed"):
        LLM.from_params(config, own, no_such_argument=1)


def test_without_a_tokenizer_texts_are_refused():
    config, own = made()
    llm = LLM.from_params(config, own, **SIZES)
    (output,) = llm.generate("a text", PLAIN, use_tqdm=False)
    assert "token ids" in output.error.message
    assert "without a tokenizer" in llm.score(["a"], ["b"], use_tqdm=False)[0].error.message
    assert answers(llm)[0].outputs[0].text == ""
