"""What is particular in the configs of Gemma: older spellings, patterns of layers, scales of the largest models."""

from __future__ import annotations

import math

import pytest

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.families import gemma

BASE = {
    "vocab_size": 262_144, "hidden_size": 640, "num_hidden_layers": 18, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 2048, "sliding_window": 512,
    "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh",
}


def test_both_spellings_of_gemma3_mean_the_same():
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(18)]
    old = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
           "sliding_window_pattern": 6}
    new = {"layer_types": kinds, "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
    config = gemma.gemma3_config({**BASE, **old})
    assert config == gemma.gemma3_config({**BASE, **new})
    assert [config.window_of(layer) for layer in (0, 4, 5, 17)] == [512, 512, None, None]
    assert [config.ropes[config.rope_of(layer)].theta for layer in (4, 5)] == [1e4, 1e6]
    assert config.ropes[1].kind == "default"


def test_defaults_are_those_of_the_first_checkpoints():
    config = gemma.gemma3_config(BASE)
    assert (config.full_layers, config.tie_word_embeddings) == ((5, 11, 17), True)
    assert config.max_position_embeddings == 131_072
    assert (config.attention_scale, config.embedding_scale) == (1 / 16, math.sqrt(640))
    second = gemma.gemma2_config(BASE)
    assert (second.attention_soft_cap, second.logit_soft_cap) == (50.0, 30.0)
    assert second.full_layers == tuple(range(1, 18, 2))
    first = gemma.gemma1_config({**BASE, "hidden_activation": None, "hidden_act": "gelu"})
    assert (first.activation, first.sliding_window) == ("gelu_tanh", None)


@pytest.mark.parametrize(("changes", "name"), [
    ({"layer_types": ["full_attention"]}, "layer_types"),
    ({"layer_types": [["full_attention"]] * 18}, "layer_types"),
    ({"num_key_value_heads": 0}, "num_key_value_heads=0"),
    ({"head_dim": -2}, "head_dim=-2"),
    ({"layer_types": ["chunked_attention"] * 18}, "layer_types"),
    ({"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ({"final_logit_softcapping": -1.0}, "logit_soft_cap"),
    ({"hidden_activation": "relu"}, "relu"),
    ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ({"sliding_window_pattern": 0}, "sliding_window_pattern"),
])
def test_values_that_make_no_sense_are_refused_by_name(changes, name):
    with pytest.raises(UnsupportedModelError, match=name):
        gemma.gemma3_config({**BASE, **changes})
