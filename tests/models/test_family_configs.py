"""What is particular in the configs of families with a switch or two of their own."""

from __future__ import annotations

import numpy as np
import pytest

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.families.alibi import alibi_slopes, mpt_slopes
from jaxllm.models.model import build_model
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


def test_olmo3_extends_only_the_rope_of_its_full_layers():
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
    config = _config("Olmo3ForCausalLM", rope_theta=7e5, rope_scaling=yarn)
    assert (config.full_layers, config.sliding_window) == ((3, 7), 4096)
    kinds = [(rope.kind, rope.theta) for rope in (config.ropes[config.rope_of(layer)] for layer in (2, 3))]
    assert kinds == [("default", 7e5), ("yarn", 7e5)]


def test_stablelms_first_configs_have_other_words():
    config = _config("StableLMEpochForCausalLM", rope_pct=0.5, norm_eps=1e-4)
    assert (config.rope.rotary_dim, config.norm_eps) == (8, 1e-4)


@pytest.mark.parametrize(("pattern", "full"), [("LLLG", (3, 7)), (3, (2, 5))])
def test_exaone4s_full_layers_are_unrotated(pattern, full):
    config = _config("Exaone4ForCausalLM", sliding_window=16, sliding_window_pattern=pattern)
    assert (config.full_layers, config.unrotated_layers) == (full, full)
    plain = _config("Exaone4ForCausalLM", sliding_window=None, sliding_window_pattern=None)
    assert (plain.full_layers, plain.unrotated_layers) == ((), ())


@pytest.mark.parametrize(("changes", "kv_heads", "parallel", "norm"), [
    ({"n_head_kv": 2, "new_decoder_architecture": True}, 2, (True, False), "ln_attn"),
    ({"num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 2, (True, True),
     "input_layernorm"),
    ({}, 1, (True, True), "input_layernorm"),
    ({"multi_query": False, "parallel_attn": False}, 4, (False, False), "input_layernorm"),
])
def test_falcons_kv_heads_and_norms_are_those_of_its_variants(changes, kv_heads, parallel, norm):
    config = _config("FalconForCausalLM", **changes)
    assert config.num_kv_heads == kv_heads
    assert (config.parallel_residual, config.shared_norm) == parallel
    model = build_model(config, np.float32)
    names = {piece.name for pieces in family_of({"architectures": ["FalconForCausalLM"]}).weight_map(model).values()
             for piece in pieces}
    assert f"transformer.h.0.{norm}.weight" in names


def test_slopes_of_heads_that_are_no_power_of_two_are_put_in_between():
    assert alibi_slopes(4) == (1 / 4, 1 / 16, 1 / 64, 1 / 256)
    assert alibi_slopes(6) == (*alibi_slopes(4), *alibi_slopes(8)[:4:2])
    assert mpt_slopes(4, 8) == alibi_slopes(4)
    assert mpt_slopes(3, 8) == (1 / 16, 1 / 256, 1 / 4)


@pytest.mark.parametrize(("architecture", "stored", "module"), [
    ("BloomForCausalLM", "word_embeddings.weight", "embedding"),
    ("GPT2LMHeadModel", "wte.weight", "embedding"), ("GPT2LMHeadModel", "transformer.wte.weight", "embedding"),
    ("GPTNeoXForCausalLM", "lm_head.weight", "head"), ("GPTNeoXForCausalLM", "embed_out.weight", "head"),
])
def test_a_checkpoint_may_use_another_of_a_tensors_names(architecture, stored, module):
    model = build_model(_config(architecture), np.float32)
    plan = family_of({"architectures": [architecture]}).weight_map(model, {stored})
    assert [piece.name for piece in plan[f"{module}.weight"]] == [stored]


@pytest.mark.parametrize(("architecture", "changes", "name"), [
    ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ("SmolLM3ForCausalLM", {"no_rope_layer_interval": 0}, "no_rope_layer_interval"),
    ("SmolLM3ForCausalLM", {"use_sliding_window": True}, "use_sliding_window"),
    ("GraniteForCausalLM", {"logits_scaling": 0}, "logits_scaling"),
    ("GraniteForCausalLM", {"residual_multiplier": "x"}, "residual_scale"),
    ("Phi3ForCausalLM", {"partial_rotary_factor": 0.0}, "partial_rotary_factor"),
    ("Phi3ForCausalLM", {"partial_rotary_factor": 1.5}, "rotates 24 dimensions"),
    ("Phi3ForCausalLM", {"partial_rotary_factor": 0.2}, "rotates 3 dimensions"),
    ("StableLmForCausalLM", {"use_parallel_residual": 1}, "use_parallel_residual=1"),
    ("StableLmForCausalLM", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
    ("Starcoder2ForCausalLM", {"hidden_act": "tanh"}, "hidden_act='tanh'"),
    ("GPTJForCausalLM", {"rotary_dim": 0}, "rotary_dim=0"),
    ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("CohereForCausalLM", {"logit_scale": 0}, "logit_scale"),
    ("PhiForCausalLM", {"qk_layernorm": True}, "qk_layernorm"),
    ("Exaone4ForCausalLM", {"sliding_window_pattern": "LLX"}, "sliding_window_pattern='LLX'"),
    ("FalconForCausalLM", {"new_decoder_architecture": True, "parallel_attn": False}, "parallel_attn"),
    ("OPTForCausalLM", {"ffn_dim": 96, "layer_norm_elementwise_affine": False}, "layer_norm_elementwise"),
    ("OPTForCausalLM", {"ffn_dim": 96, "word_embed_proj_dim": 0}, "word_embed_proj_dim=0"),
    ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection"),
    ("MptForCausalLM", {"d_model": 64, "n_layers": 1, "n_heads": 4, "no_bias": False}, "no_bias"),
    ("MptForCausalLM", {"d_model": 64, "n_layers": 1, "n_heads": 4, "attn_config": {"alibi": False}}, "alibi=False"),
    ("MptForCausalLM", {"d_model": 64, "n_layers": 1, "n_heads": 4, "attn_config": {"clip_qkv": -1}}, "qkv_clip"),
    ("HunYuanDenseV1ForCausalLM", {"rope_scaling": {"type": "dynamic", "factor": 1, "alpha": -1}}, "alpha"),
    ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 0}, "sliding_window"),
])
def test_values_that_cannot_be_honoured_are_refused_by_name(architecture, changes, name):
    with pytest.raises(UnsupportedModelError, match=name):
        _config(architecture, **changes)
