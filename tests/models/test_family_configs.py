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


V3 = {"hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128, "num_hidden_layers": 61,
      "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
      "qk_rope_head_dim": 64, "v_head_dim": 128, "moe_intermediate_size": 2048, "n_routed_experts": 256,
      "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5,
      "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True, "moe_layer_freq": 1,
      "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                       "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}}
V2_LITE = {"num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 27, "first_k_dense_replace": 1,
           "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
           "v_head_dim": 128, "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
           "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "norm_topk_prob": False,
           "scoring_func": "softmax", "moe_layer_freq": 1}


def test_deepseek_v3s_config_is_what_it_was_published_as():
    config = _config("DeepseekV3ForCausalLM", **V3)
    assert (config.latent.q_rank, config.latent.cached_dim, config.num_kv_heads, config.head_dim) == (1536, 576, 1, 576)
    assert config.attention_scale == pytest.approx(192**-0.5 * (0.1 * np.log(40) + 1) ** 2)
    assert (config.rope.kind, config.rope.attention_factor, config.rope.rotary_dim) == ("yarn", 1.0, 64)
    moe = config.moe
    assert (moe.dense_layers, moe.shared_size, moe.scale, moe.scores) == ((0, 1, 2), 2048, 2.5, "sigmoid")
    assert (moe.groups, moe.taken_groups, moe.group_score, moe.correction, moe.normalize) == (
        8, 4, "two largest", True, True)


def test_deepseek_v2_lite_has_queries_of_full_rank_and_no_groups():
    config = _config("DeepseekV2ForCausalLM", **V2_LITE)
    assert (config.latent.q_rank, config.attention_scale) == (None, 192**-0.5)
    assert (config.moe.groups, config.moe.scores, config.moe.shared_size) == (1, "softmax", 2816)
    assert _config("DeepseekV2ForCausalLM", **V2_LITE | {"first_k_dense_replace": 27}).moe is None


def test_gpt_oss_has_the_rope_and_the_windows_of_its_class_where_the_config_says_nothing():
    config = _config("GptOssForCausalLM", num_attention_heads=64, num_hidden_layers=4)
    assert (config.rope.kind, config.rope.theta, config.rope.factor, config.rope.truncate) == (
        "yarn", 150_000.0, 32.0, False)
    assert config.rope.attention_factor == pytest.approx(0.1 * np.log(32) + 1)
    assert (config.sliding_window, config.full_layers, config.head_dim, config.attention_bias) == (
        128, (1, 3), 64, True)
    assert (config.moe.num_experts, config.moe.experts_per_token, config.moe.gate_limit, config.moe.gate_slope) == (
        128, 4, 7.0, 1.702)
    listed = _config("GptOssForCausalLM", num_key_value_heads=4, layer_types=["full_attention"] * 8)
    assert listed.full_layers == tuple(range(8))


def test_llama4_has_chunks_where_it_has_a_rotary_embedding_and_experts_in_every_so_manieth_layer():
    config = _config("Llama4ForCausalLM", num_key_value_heads=4, interleave_moe_layer_step=2)
    assert (config.unrotated_layers, config.full_layers, config.attention_chunk) == ((3, 7), (3, 7), 8192)
    assert [config.chunk_of(layer) for layer in (2, 3)] == [8192, None]
    assert (config.attention_temperature, config.temperature_interval, config.qk_norm) == (0.1, 8192, "unit")
    assert (config.moe.dense_layers, config.moe.weigh_inputs, config.moe.scores) == ((0, 2, 4, 6), True, "sigmoid")
    assert (config.intermediate_size, config.moe.expert_size, config.moe.shared_size) == (16_384, 96, 96)
    plain = _config("Llama4ForCausalLM", num_key_value_heads=4, attention_chunk_size=None, moe_layers=[],
                    attn_temperature_tuning=False, use_qk_norm=False)
    assert (plain.attention_chunk, plain.moe, plain.attention_temperature, plain.qk_norm) == (None, None, None, "none")


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
    ("Llama4ForCausalLM", {"num_key_value_heads": 4, "layer_types": ["full_attention"] * 8}, "layer_types"),
    ("Llama4ForCausalLM", {"num_key_value_heads": 4, "moe_layers": [8]}, "moe_layers"),
    ("Llama4ForCausalLM", {"num_key_value_heads": 4, "attention_chunk_size": 0}, "attention_chunk=0"),
    ("GptOssForCausalLM", {"num_key_value_heads": 4, "swiglu_limit": 0}, "limit of its experts"),
    ("GptOssForCausalLM", {"num_key_value_heads": 4, "hidden_act": "gelu"}, "hidden_act"),
    ("DeepseekV2ForCausalLM", V2_LITE | {"norm_topk_prob": True}, "norm_topk_prob"),
    ("DeepseekV2ForCausalLM", V2_LITE | {"topk_method": "noaux_tc"}, "topk_method"),
    ("DeepseekV2ForCausalLM", V2_LITE | {"kv_lora_rank": 0}, "kv_lora_rank"),
    ("DeepseekV2ForCausalLM", V2_LITE | {"qk_rope_head_dim": 63}, "rotates 63 dimensions"),
    ("DeepseekV3ForCausalLM", V3 | {"topk_group": 9}, "9 groups of 8"),
    ("DeepseekV3ForCausalLM", V3 | {"n_group": 7}, "7 groups of 256"),
    ("DeepseekV3ForCausalLM", V3 | {"first_k_dense_replace": -1}, "first_k_dense_replace"),
    ("DeepseekV3ForCausalLM", V3 | {"scoring_func": "softmax"}, "scoring_func"),
    ("DeepseekV3ForCausalLM", V3 | {"routed_scaling_factor": 0}, "scale of its experts"),
    ("DeepseekV3ForCausalLM", V3 | {"moe_layer_freq": 2}, "moe_layer_freq"),
])
def test_values_that_cannot_be_honoured_are_refused_by_name(architecture, changes, name):
    with pytest.raises(UnsupportedModelError, match=name):
        _config(architecture, **changes)


def test_qwens_experts_are_in_every_nth_layer_but_for_those_that_are_named():
    config = _config("Qwen2MoeForCausalLM", decoder_sparse_step=2, mlp_only_layers=[3])
    assert config.moe.dense_layers == (0, 2, 3, 4, 6)
    assert (config.moe.num_experts, config.moe.experts_per_token, config.moe.expert_size) == (60, 4, 1408)
    assert (config.moe.shared_size, config.moe.shared_gate, config.moe.normalize) == (5632, True, False)
    assert (config.attention_bias, config.sliding_window) == (True, None)
    newer = _config("Qwen3MoeForCausalLM", norm_topk_prob=True, num_experts=6, num_experts_per_tok=5, head_dim=128)
    assert (newer.moe.num_experts, newer.moe.normalize, newer.moe.dense_layers) == (6, True, ())
    assert (newer.moe.shared_size, newer.qk_norm, newer.head_dim) == (None, "head", 128)
    with pytest.raises(UnsupportedModelError, match=r"mlp_only_layers='all'; a list of layers' numbers"):
        _config("Qwen3MoeForCausalLM", mlp_only_layers="all")


def test_qwen_2_with_experts_has_windows_in_even_layers_of_the_first():
    config = _config("Qwen2MoeForCausalLM", use_sliding_window=True, sliding_window=16, max_window_layers=5)
    assert (config.sliding_window, config.full_layers) == (16, (1, 3, 5, 6, 7))
    newer = _config("Qwen3MoeForCausalLM", use_sliding_window=True, sliding_window=16)
    assert (newer.sliding_window, newer.full_layers) == (16, ())


def test_granites_shared_mlp_is_there_where_it_has_a_size():
    assert _config("GraniteMoeForCausalLM", logits_scaling=2.0).moe.shared_size is None
    config = _config("GraniteMoeSharedForCausalLM", shared_intermediate_size=32, residual_multiplier=0.22)
    assert (config.moe.shared_size, config.moe.shared_gate, config.moe.normalize) == (32, False, True)
    assert (config.residual_scale, config.attention_scale) == (0.22, 1.0)
    assert _config("GraniteMoeSharedForCausalLM", shared_intermediate_size=0).moe.shared_size is None


def test_phi_moes_scale_of_cosines_and_sines_goes_with_its_frequencies():
    rope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "short_mscale": 1.1,
            "long_mscale": 1.2, "original_max_position_embeddings": 4096}
    config = _config("PhiMoEForCausalLM", rope_scaling=rope, num_key_value_heads=2)
    assert (config.rope.attention_factor, config.rope.frequency_divisors) == (1.2, (2.0,) * 8)
    short = _config("PhiMoEForCausalLM", rope_scaling=rope, num_key_value_heads=2, max_position_embeddings=4096)
    assert (short.rope.attention_factor, short.rope.frequency_divisors) == (1.1, (1.0,) * 8)
    assert (config.moe.scores, config.moe.nearness, config.rope.theta) == ("sparsemixer", 0.01, 1e6)
    del rope["long_mscale"]
    with pytest.raises(UnsupportedModelError, match="no 'long_mscale'"):
        _config("PhiMoEForCausalLM", rope_scaling=rope, num_key_value_heads=2)


def test_olmoe_with_clipped_queries_is_refused():
    assert _config("OlmoeForCausalLM", clip_qkv=None).qk_norm == "all"
    with pytest.raises(UnsupportedModelError, match=r"clip_qkv=8\.0"):
        _config("OlmoeForCausalLM", clip_qkv=8.0)
