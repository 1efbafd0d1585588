"""Translations of Hugging Face configs that all families share, on Llama's, and the registry."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import RopeConfig
from jaxllm.models.families import llama, mistral
from jaxllm.models.families.rope import rope_config
from jaxllm.models.model import build_model
from jaxllm.models.registry import FAMILIES, family_of

BASE = {
    "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "rope_theta": 500000.0,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
}
GPT2_WORDS = {"n_embd": 4096, "n_layer": 4, "n_head": 32, "ffn_dim": 14336, "d_model": 4096, "n_layers": 4,
              "n_heads": 32}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}


def test_llama3_frequencies_follow_their_definition():
    found = rope_config({**BASE, "rope_scaling": LLAMA3}).inverse_frequencies(128)
    for index, value in enumerate(found):
        plain = 500000.0 ** (-2 * index / 128)
        wavelength = 2 * np.pi / plain
        if wavelength < 8192 / 4:
            expected = plain
        elif wavelength > 8192:
            expected = plain / 8
        else:
            smooth = (8192 / wavelength - 1) / 3
            expected = (1 - smooth) * plain / 8 + smooth * plain
        assert value == pytest.approx(expected, rel=1e-5)


def test_both_spellings_of_rope_settings_mean_the_same():
    old = rope_config({**BASE, "rope_scaling": LLAMA3})
    new = rope_config({"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}})
    assert old == new
    assert rope_config({"rope_theta": 7.0}) == RopeConfig(theta=7.0)


def test_unknown_rope_and_activation_are_refused():
    with pytest.raises(UnsupportedModelError, match="proportional"):
        rope_config({"rope_scaling": {"rope_type": "proportional", "factor": 4}})
    with pytest.raises(UnsupportedModelError, match="gelu"):
        llama.decoder_config({**BASE, "hidden_act": "gelu"})


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_attention_heads", "intermediate_size"])
def test_a_missing_size_is_named(name):
    with pytest.raises(UnsupportedModelError, match=name):
        llama.decoder_config({key: value for key, value in BASE.items() if key != name})


@pytest.mark.parametrize(("changes", "name"), [
    *(({name: value}, name)
      for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size")
      for value in (0, -4, "x", [2], 32.5, True)),
    *(({"num_key_value_heads": value}, "num_key_value_heads") for value in ("2", -1, 0)),
    *(({"head_dim": value}, "head_dim") for value in ("8", 7, True)),
    *(({"max_position_embeddings": value}, "max_position_embeddings") for value in (None, "256", 0)),
    *(({"rms_norm_eps": value}, "norm_eps") for value in (None, "x", -1e-5, math.nan, math.inf)),
    *(({"rope_theta": value}, "theta") for value in (None, "x", 0, -1, math.inf)),
    *(({"rope_scaling": value}, "rope") for value in ([1], "x", 5)),
    ({"rope_scaling": {"type": "linear"}}, "factor"),
    ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
    ({"rope_scaling": {"type": "linear", "factor": "2"}}, "factor"),
    *(({"rope_scaling": {**LLAMA3, name: value}}, name.removesuffix("_embeddings"))
      for name in list(LLAMA3)[1:] for value in (None, 0, "x")),
    ({"rope_scaling": {**LLAMA3, "low_freq_factor": 4.0}}, "low_freq_factor"),
    ({"rope_frequency_divisors": [1.0, 0.0]}, "divisor"),
], ids=str)
def test_values_that_make_no_sense_are_refused_by_name(changes, name):
    with pytest.raises(UnsupportedModelError, match=name):
        llama.decoder_config({**BASE, **changes})


@pytest.mark.parametrize("architectures", ["LlamaForCausalLM", 5, [5], {"a": 1}])
def test_architectures_that_are_no_list_of_names_are_refused(architectures):
    with pytest.raises(UnsupportedModelError, match="a list of names is needed"):
        family_of({"architectures": architectures})


@pytest.mark.parametrize("changes", [
    {"quantization_config": {"quant_method": "awq", "bits": 4}}, {"compression_config": {"quant_method": "awq"}},
])
def test_a_checkpoint_that_is_quantized_is_refused_by_its_method(changes):
    assert family_of({**BASE, "quantization_config": None}).name == "llama"
    with pytest.raises(UnsupportedModelError, match=r"quant_method='awq'.*\.gguf"):
        family_of({**BASE, **changes})


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(UnsupportedModelError, match="num_key_value_heads=5"):
        llama.decoder_config({**BASE, "num_key_value_heads": 5})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_parameter_has_checkpoint_names_and_the_other_way_round(family):
    for changes in ({}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}):
        config = family.decoder_config(
            {**BASE, **GPT2_WORDS, "num_experts_per_tok": 2, "hidden_act": None,
             "architectures": list(family.architectures), **changes})
        model = build_model(config, np.float32)
        assert set(family.weight_map(model)) == set(model.specs)


def test_the_description_of_an_8b_costs_no_memory():
    config = llama.decoder_config({**BASE, "num_hidden_layers": 32})
    model = build_model(config, np.dtype("float16"))
    assert model.num_parameters == 8_030_261_248
    assert model.weight_bytes == 2 * model.num_parameters
    assert set(model.like) == {0}


@pytest.mark.parametrize("value", [0, -1, "x", 1.5, True])
def test_a_window_that_makes_no_sense_is_refused(value):
    with pytest.raises(UnsupportedModelError, match="sliding_window"):
        mistral.decoder_config({**BASE, "sliding_window": value})


def test_mistral_has_its_window_and_unknown_architectures_are_told_the_nearest():
    config = family_of({"architectures": ["MistralForCausalLM"]}).decoder_config({**BASE, "sliding_window": 4096})
    assert config.sliding_window == 4096
    with pytest.raises(UnsupportedModelError, match=r"'LlamaForCausalLN' is not supported.*LlamaForCausalLM"):
        family_of({"architectures": ["LlamaForCausalLN"]})
    with pytest.raises(UnsupportedModelError, match="names no architectures"):
        family_of({})
