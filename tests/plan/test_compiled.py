"""The engine's own step, compiled for GPUs that are not here, against what is counted from the description."""

from __future__ import annotations

import functools
import json
from collections import Counter

import pytest
from kernels.gpu_compiling import needs_gpu_compilers
from plan.planned import CONFIGS

import jaxllm
from jaxllm import ParameterError
from jaxllm.planning.compiled import collectives_in

LAYERS = 2  # of a model, which compile in seconds; what is counted per layer is the same in 80


@functools.cache
def compiled(name, layers, **mesh):
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    return jaxllm.plan(config | {"num_hidden_layers": layers}, "h200", compile=True, max_num_seqs=64, **mesh)


CASES = [
    pytest.param("llama-3.1-70b", LAYERS, {"tensor_parallel_size": 8}, id="70B as T8"),
    pytest.param("llama-3.1-70b", LAYERS + 1, {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
                 id="70B as T4 x P2", marks=pytest.mark.sweep),
    pytest.param("qwen3-30b-a3b", LAYERS, {"tensor_parallel_size": 8, "enable_expert_parallel": True},
                 id="Qwen3-30B-A3B with experts over 8", marks=pytest.mark.sweep),
    pytest.param("qwen3-30b-a3b", LAYERS, {"data_parallel_size": 8, "enable_expert_parallel": True},
                 id="Qwen3-30B-A3B with experts over D8", marks=pytest.mark.sweep),
    pytest.param("qwen3-30b-a3b", LAYERS, {
        "data_parallel_size": 2, "tensor_parallel_size": 4, "enable_expert_parallel": True},
                 id="Qwen3-30B-A3B with experts over D2 x T4", marks=pytest.mark.sweep),
]


@needs_gpu_compilers
@pytest.mark.parametrize(("name", "layers", "mesh"), CASES)
def test_bytes_and_collectives_of_the_compiled_step_are_those_that_are_counted(name, layers, mesh):
    plan = compiled(name, layers, **mesh)
    block = 64 * plan.cache.num_blocks
    for stage, resident in zip(plan.stages, plan.compiled.resident_bytes, strict=True):
        counted = stage.weight_bytes + stage.kv_bytes_per_token * block
        assert resident == pytest.approx(counted, rel=0.03)
    in_text = sum((plan.compiled.collectives(stage) for stage in range(len(plan.stages))), Counter())
    expected = Counter()
    for each in plan.collectives:
        if each.kind != "send":  # between the programs of two stages, by none of them
            expected[each.kind, each.bytes_each] += each.count
    assert in_text == expected
    if plan.mesh.spread:
        assert sum(count for (kind, _), count in in_text.items() if kind == "ragged-all-to-all") == 3 * layers
    if plan.mesh.tensor > 1:
        assert sum(count for (kind, _), count in in_text.items() if kind == "all-reduce") == 2 * layers + 1
    layer_programs = [each for each in plan.compiled.decode if each.name.startswith("layers")]
    assert all(program.custom_kernels for program in layer_programs)


@needs_gpu_compilers
@pytest.mark.parametrize(("name", "layers", "mesh"), CASES)
def test_no_step_takes_much_more_than_is_set_aside_for_it(name, layers, mesh):
    plan = compiled(name, layers, **mesh)
    assert plan.compiled.temporary_bytes <= 1.05 * plan.memory.temporary


@needs_gpu_compilers
@pytest.mark.parametrize(("given", "why"), [
    ({"gpu": "l4"}, "the compilers know a100-40, a100-80, h100, h200, b200"),
])
def test_what_cannot_be_compiled_is_refused(given, why):
    with pytest.raises(ParameterError, match=f"compile=True .*{why}"):
        jaxllm.plan(CONFIGS / "qwen3-30b-a3b.json", compile=True, **given)


def test_without_the_compilers_it_is_refused_with_what_is_missing(monkeypatch):
    from pallas_kernels import aot

    monkeypatch.setattr(aot, "unavailable", lambda: "not installed: triton (the aot extra)")
    with pytest.raises(ParameterError, match=r"compile=True .*the aot extra"):
        jaxllm.plan(CONFIGS / "llama-3.1-8b.json", "h200", compile=True)


def test_collectives_are_found_in_the_text_whatever_form_they_have():
    text = """
  %all-reduce-start = ((bf16[64,8192]{1,0}), bf16[64,8192]{1,0}) all-reduce-start(%a), channel_id=1
  %all-reduce-done = bf16[64,8192]{1,0} all-reduce-done(%all-reduce-start)
  %all-reduce.1 = bf16[64,8192]{1,0} all-reduce(%b), channel_id=2
  %all-gather.2 = (s32[8,32]{1,0}, f32[8,32]{1,0}) all-gather(%c, %d), channel_id=3
  %fusion = f32[8]{0} fusion(%all-reduce.1), calls=%e
"""
    found = {(each.kind, each.bytes_each): each.count for each in collectives_in(text, 8)}
    assert found == {("all-reduce", 64 * 8192 * 2): 2, ("all-gather", 32 * 8): 1}
