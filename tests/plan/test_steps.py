"""What a step exchanges, how long it takes at least, and why."""

from __future__ import annotations

import pytest
from plan.planned import planned

from jaxllm.planning import GPUS, MeshSizes

ROW = 8192 * 2  # bytes of a hidden row of Llama 3.1 70B


def table(plan):
    return [(each.kind, each.axis, each.count, each.bytes_each) for each in plan.collectives]


def test_one_gpu_and_independent_replicas_exchange_nothing():
    assert planned("llama-3.1-70b").collectives == ()
    assert planned("llama-3.1-70b", data=8).collectives == ()


def test_tensor_parallel_layers_have_two_all_reduces_each():
    plan = planned("llama-3.1-70b", tensor=8, batch=64)
    assert table(plan) == [("all-reduce", "tensor", 1, 64 * ROW), ("all-reduce", "tensor", 80, 64 * ROW),
                           ("all-reduce", "tensor", 80, 64 * ROW), ("all-gather", "tensor", 1, 64 * 8)]
    sent = [count * 2 * 7 * 64 * ROW // 8 for count in (1, 80, 80)]
    assert [each.sent_bytes for each in plan.collectives] == [*sent, 7 * 64 * 8]


def test_stages_hand_the_hidden_rows_of_their_share_of_the_batch_on():
    plan = planned("llama-3.1-70b", pipe=4, batch=64)
    assert table(plan) == [("send", "pipe", 1, 16 * ROW)] * 3


def test_experts_over_replicas_exchange_rows_and_results_once_per_layer():
    plan = planned("qwen3-30b-a3b", data=8, experts=True, batch=64)
    row = 2048 * 2
    assert table(plan) == [
        ("all-to-all", "experts", 3 * 48, 8 * 4), ("ragged-all-to-all", "experts", 48, 8 * 8 * row),
        ("ragged-all-to-all", "experts", 48, 8 * 8 * 8 * 4), ("ragged-all-to-all", "experts", 48, 8 * 8 * row)]
    reached = 7 * (1 - (7 / 8) ** 8)  # other GPUs that have one of a token's experts
    assert [each.sent_bytes for each in plan.collectives[1:]] == [
        48 * round(8 * reached * row), 48 * round(8 * reached * 8 * 4), 48 * 8 * 8 * 7 // 8 * row]


def test_replicas_that_are_pipelines_keep_their_experts():
    plan = planned("qwen3-30b-a3b", data=2, pipe=2, tensor=4, experts=True)
    assert {each.kind for each in plan.collectives} == {"all-reduce", "all-gather", "send"}
    assert any("keep all experts" in note for note in plan.notes)


def test_what_goes_beyond_a_node_goes_over_its_network():
    inside, beyond = (planned("llama-3.1-405b", tensor=16, gpus_per_node=size) for size in (16, 8))
    assert {each.link for each in inside.collectives} == {"NVLink"}
    assert {each.link for each in beyond.collectives} == {"network"}
    assert beyond.decode.tokens_per_second < inside.decode.tokens_per_second
    assert any("crosses the network" in note for note in beyond.notes)
    assert not inside.notes or all("network" not in note for note in inside.notes)


@pytest.mark.parametrize(("mesh", "axis", "name"), [
    (MeshSizes(1, 2, 8), "tensor", "NVLink"), (MeshSizes(1, 2, 8), "pipe", "network"),
    (MeshSizes(2, 1, 8, True), "experts", "network"), (MeshSizes(1, 1, 6, gpus_per_node=8), "tensor", "NVLink"),
    (MeshSizes(2, 1, 6, gpus_per_node=8), "tensor", "network"),
])
def test_a_group_that_a_nodes_end_cuts_uses_the_network(mesh, axis, name):
    assert mesh.link(GPUS["h200"], axis).name == name


def test_few_sequences_wait_for_the_memory_and_prompts_for_the_products():
    plan = planned("llama-3.1-8b", batch=1, context=1024)
    keys = 1024 * 131_072
    read = plan.model.weight_bytes - 128_256 * 4096 * 2 + 4096 * 2 + keys + 131_072
    norm = 4096 * 2  # the last one's weights are left out
    assert plan.decode.memory_seconds == pytest.approx((read - norm) / 4.8e12, rel=1e-9)
    assert (plan.decode.limit, plan.prefill.limit) == ("memory bandwidth", "compute")
    assert plan.decode.tokens_per_second == pytest.approx(1 / plan.decode.memory_seconds)


def test_operations_are_two_a_weight_and_four_a_key_and_head_dimension():
    plan = planned("llama-3.1-8b", batch=8, context=1024)
    matrices = plan.model.active_parameters - 4096 * (2 * 32 + 1)
    flops = 8 * (2 * matrices + 4 * 32 * 4096 * 1024)
    assert plan.decode.compute_seconds == pytest.approx(flops / 989.4e12, rel=1e-9)


def test_many_short_sequences_over_slow_links_wait_for_them():
    assert planned("llama-3.1-8b", "rtx4090", tensor=8, batch=512, context=128).decode.limit == "links"


def test_windows_are_read_and_no_more():
    short, long = (planned("gpt-oss-120b", batch=8, context=context, tensor=8) for context in (128, 65_536))
    keys = (long.decode.memory_seconds - short.decode.memory_seconds) * 4.8e12
    # Half of the 36 layers see 128 tokens.
    assert keys == pytest.approx(8 * 18 * (65_536 - 128) * 2 * 64 * 2, rel=1e-6)


def test_a_step_reads_the_experts_that_its_tokens_take():
    one, many = (planned("qwen3-30b-a3b", batch=batch, context=64) for batch in (1, 4096))
    experts = 48 * 128 * 3 * 768 * 2048 * 2
    assert one.decode.memory_seconds < (one.model.weight_bytes - experts * 15 / 16) / 4.8e12 * 1.01
    assert many.decode.memory_seconds > many.model.weight_bytes * 0.95 / 4.8e12


def test_a_pipeline_is_as_fast_as_its_slowest_stage_once_there_is_enough_under_way():
    lone, full = (planned("llama-3.1-70b", pipe=4, batch=batch, context=1024) for batch in (1, 256))
    assert lone.decode.tokens_per_second == pytest.approx(1 / lone.decode.seconds)
    slowest = max(full.decode.memory_seconds, full.decode.compute_seconds)
    assert full.decode.tokens == 64
    assert full.decode.tokens_per_second == pytest.approx(256 / max(full.decode.seconds, 4 * slowest))


def test_more_sequences_than_fit_wait():
    plan = planned("llama-3.1-8b", "l40s", batch=1000)
    assert plan.running == plan.cache.sequences < 1000
    assert any("wait" in note for note in plan.notes)


def test_float32_computes_at_half_the_rate():
    half, full = (planned("llama-3.1-8b", dtype=dtype, batch=8) for dtype in ("bfloat16", "float32"))
    assert full.decode.compute_seconds == pytest.approx(2 * half.decode.compute_seconds)
    assert full.model.weight_bytes == 2 * half.model.weight_bytes
