"""What a GPU of a mesh keeps, against published figures and sums by hand."""

from __future__ import annotations

import json

import pytest
from plan.planned import CONFIGS, planned

import jaxllm
from jaxllm.cli.options import format_bytes

GIB = 1 << 30


@pytest.mark.parametrize(("name", "billions"), [
    ("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.6), ("llama-3.1-405b", 405.9), ("qwen3-30b-a3b", 30.5),
    ("qwen3-235b-a22b", 235.1), ("deepseek-v3", 671), ("gemma-3-27b-text", 27), ("gpt-oss-120b", 116.8),
])
def test_there_are_as_many_parameters_as_are_published(name, billions):
    digits = len(str(billions).partition(".")[2])
    assert round(planned(name).model.parameters / 1e9, digits) == billions


@pytest.mark.parametrize(("name", "billions"), [
    ("qwen3-30b-a3b", 3.0), ("qwen3-235b-a22b", 21.6), ("deepseek-v3", 36.6), ("gpt-oss-120b", 5.1),
])
def test_a_token_is_multiplied_by_the_experts_that_it_takes(name, billions):
    assert round(planned(name).model.active_parameters / 1e9, 1) == billions


@pytest.mark.parametrize(("name", "nbytes"), [
    ("llama-3.1-8b", 131_072), ("llama-3.1-70b", 327_680), ("llama-3.1-405b", 516_096), ("deepseek-v3", 70_272),
    ("qwen3-30b-a3b", 98_304), ("gpt-oss-120b", 73_728), ("gemma-3-27b-text", 507_904),
])
def test_bytes_of_the_cache_per_token(name, nbytes):
    assert planned(name).cache.bytes_per_token == nbytes


def test_the_cache_in_int8_has_a_scale_for_each_head_of_a_token():
    assert planned("llama-3.1-8b", kv_cache_dtype="int8").cache.bytes_per_token == 32 * 2 * 8 * (128 + 4)


@pytest.mark.parametrize(("tensor", "heads", "copies"), [(1, 4, 1), (2, 2, 1), (4, 1, 1), (8, 1, 2), (16, 1, 4)])
def test_fewer_kv_heads_than_gpus_are_kept_several_times(tensor, heads, copies):
    cache = planned("qwen3-30b-a3b", tensor=tensor).cache
    assert (cache.kv_heads_per_gpu, cache.copies) == (heads, copies)
    assert cache.bytes_per_token_per_gpu * tensor == cache.bytes_per_token * copies


def test_every_gpu_keeps_all_latents():
    cache = planned("deepseek-v3", tensor=8).cache
    assert cache.bytes_per_token_per_gpu == cache.bytes_per_token


def by_hand(tensor, kv_heads):
    """Bytes of Llama 3.1 70B on one GPU."""
    width, ffn, heads, vocab = 8192, 28672, 64, 128_256
    qkv = (heads // tensor + 2 * kv_heads) * 128 * width
    layer = qkv + heads // tensor * 128 * width + 3 * ffn // tensor * width + 2 * width
    return 2 * (80 * layer + 2 * (vocab // tensor) * width + width)


@pytest.mark.parametrize(("tensor", "kv_heads"), [(1, 8), (8, 1), (16, 1)])
def test_weights_of_one_gpu_are_its_heads_its_columns_and_its_part_of_the_vocabulary(tensor, kv_heads):
    assert planned("llama-3.1-70b", tensor=tensor).memory.weights == by_hand(tensor, kv_heads)


def test_weights_of_all_gpus_are_the_models_where_nothing_is_kept_twice():
    whole, eighth = planned("llama-3.1-70b"), planned("llama-3.1-70b", tensor=8)
    norms = 2 * 8192 * (2 * 80 + 1)
    assert 8 * eighth.memory.weights - whole.model.weight_bytes == 7 * norms


def test_stages_have_all_layers_once_and_weigh_about_the_same_with_embedding_and_head():
    stages = planned("llama-3.1-405b", pipe=4).stages
    assert [(stage.first_layer, stage.last_layer) for stage in stages] == [(0, 30), (31, 62), (63, 94), (95, 125)]
    whole = planned("llama-3.1-405b")
    assert sum(stage.weight_bytes for stage in stages) == whole.model.weight_bytes
    assert sum(stage.kv_bytes_per_token for stage in stages) == whole.cache.bytes_per_token


def test_a_tied_embedding_is_kept_by_the_first_stage_and_by_the_last():
    whole, two = planned("gemma-3-27b-text"), planned("gemma-3-27b-text", pipe=2)
    embedding = 262_208 * 5376 * 2
    assert sum(stage.weight_bytes for stage in two.stages) == whole.model.weight_bytes + embedding


def test_experts_are_cut_or_dealt_out_with_the_same_bytes_on_one_replica_and_fewer_over_several():
    cut, dealt = planned("qwen3-30b-a3b", tensor=8), planned("qwen3-30b-a3b", tensor=8, experts=True)
    assert cut.memory.weights == dealt.memory.weights
    spread = planned("qwen3-30b-a3b", data=8, experts=True)
    experts = 48 * 128 * 3 * 768 * 2048 * 2
    assert planned("qwen3-30b-a3b").memory.weights - spread.memory.weights == experts * 7 // 8


def test_checkpoints_that_are_decoded_are_counted_as_they_are_kept():
    for name in ("gpt-oss-120b", "deepseek-v3"):
        plan = planned(name)
        assert 2 <= plan.model.weight_bytes / plan.model.parameters < 2.001
        assert any("decoded" in note for note in plan.notes)


def test_int8_matrices_are_a_byte_a_number_and_a_factor_a_row():
    plain, small = planned("llama-3.1-8b"), planned("llama-3.1-8b", quantization="int8")
    vectors = 4096 * (2 * 32 + 1)
    rows = 32 * (48 * 128 + 4096 + 2 * 14336 + 4096) + 2 * 128_256
    assert small.model.weight_bytes == plain.model.parameters - vectors + 2 * vectors + 4 * rows


def test_windows_hold_many_more_sequences_of_the_context_than_the_tokens_say():
    # Of Gemma 3 27B 52 of 62 layers see 1,024 tokens.
    cache = planned("gemma-3-27b-text", context=131_072).cache
    assert cache.sequences > 4 * (cache.tokens // 131_072)
    assert planned("llama-3.1-8b", context=131_072).cache.sequences == planned("llama-3.1-8b").cache.tokens // 131_072


def test_replicas_add_up():
    one, four = planned("llama-3.1-8b"), planned("llama-3.1-8b", data=4)
    assert (four.cache.tokens, four.cache.sequences) == (4 * one.cache.tokens, 4 * one.cache.sequences)
    assert four.memory == one.memory


def test_the_pool_takes_what_weights_and_tables_leave_of_the_memory_that_may_be_used():
    memory = planned("llama-3.1-8b").memory
    left = int(memory.total * 0.9) - memory.weights - memory.state - memory.kv_pool
    assert 0 <= left < 64 * 131_072
    assert format_bytes(memory.total) == "140.4 GiB"


def test_a_model_that_does_not_fit_says_by_how_much_and_what_would():
    plan = planned("llama-3.1-70b")
    assert not plan.fits
    missing = plan.memory.weights + plan.memory.state + 129 * 64 * 327_680 - int(plan.memory.total * 0.9)
    assert plan.memory.short_by == missing
    assert f"{missing:,} bytes" in plan.problem
    assert "the smallest mesh of h200 that would is T2, 2 GPUs" in plan.problem
    assert planned("llama-3.1-70b", tensor=plan.smallest.tensor, pipe=plan.smallest.pipe).fits


def test_a_model_is_a_file_a_folder_or_what_is_in_the_file(tmp_path):
    (tmp_path / "config.json").write_text((CONFIGS / "llama-3.1-8b.json").read_text())
    plans = [jaxllm.plan(model, "h200") for model in (
        str(tmp_path), tmp_path / "config.json", json.loads((tmp_path / "config.json").read_text()))]
    assert {plan.model.parameters for plan in plans} == {8_030_261_248}
    assert [plan.model.name for plan in plans[:2]] == [tmp_path.name] * 2
