"""What is particular in the configs of families with a switch or two of their own."""

from __future__ import annotations

import pytest

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.registry import family_of

BASE = {"vocab_size": 100, "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "intermediate_size": 96}


def _config(architecture, **changes):
    hf = {"architectures": [architecture], **BASE, **changes}
    return family_of(hf).decoder_config(hf)


def test_qwen_uses_its_window_only_where_told_and_in_its_last_layers():
    asleep = _config("Qwen2ForCausalLM", sliding_window=16, max_window_layers=5)
    assert (asleep.sliding_window, asleep.full_layers, asleep.attention_bias) == (None, (), True)
    awake = _config("Qwen3ForCausalLM", sliding_window=16, max_window_layers=5, use_sliding_window=True)
    assert (awake.sliding_window, awake.full_layers) == (16, (0, 1, 2, 3, 4))
    assert (awake.head_dim, awake.attention_bias, awake.qk_norm) == (128, False, "head")


def test_smollm3_leaves_every_fourth_layer_unrotated():
    assert _config("SmolLM3ForCausalLM").unrotated_layers == (3, 7)
    listed = _config("SmolLM3ForCausalLM", no_rope_layers=[1, 0, 1, 1, 1, 1, 0, 1])
    assert listed.unrotated_layers == (1, 6)
    assert [listed.ropes[listed.rope_of(layer)] for layer in (0, 1)] == [listed.rope, None]


def test_granites_multipliers_have_their_places():
    config = _config("GraniteForCausalLM", embedding_multiplier=12.0, attention_multiplier=0.015625,
                     residual_multiplier=0.22, logits_scaling=8.0)
    assert (config.embedding_scale, config.attention_scale) == (12.0, 0.015625)
    assert (config.residual_scale, config.logit_scale) == (0.22, 0.125)


@pytest.mark.parametrize(("architecture", "changes", "name"), [
    ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ("SmolLM3ForCausalLM", {"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
    ("SmolLM3ForCausalLM", {"use_sliding_window": True}, "use_sliding_window"),
    ("GraniteForCausalLM", {"logits_scaling": 0}, "logits_scaling"),
    ("GraniteForCausalLM", {"residual_multiplier": "x"}, "residual_scale"),
    ("Phi3ForCausalLM", {"partial_rotary_factor": 0.75}, "partial_rotary_factor"),
    ("Phi3ForCausalLM", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "longrope"),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 0}, "sliding_window"),
])
def test_values_that_cannot_be_honoured_are_refused_by_name(architecture, changes, name):
    with pytest.raises(UnsupportedModelError, match=name):
        _config(architecture, **changes)
