"""What cannot be planned is refused with the parameter's name, its value and what is allowed."""

from __future__ import annotations

import dataclasses
import json

import pytest
from plan.planned import CONFIGS, planned

import jaxllm
from jaxllm import ModelNotFoundError, ParameterError, UnsupportedModelError


@pytest.mark.parametrize(("given", "message"), [
    ({"gpu": "h2000"}, r"gpu='h2000' is not allowed: one of a100-40, a100-80, h100, h200, b200, l4, l40s, rtx4090"),
    ({"gpu": None}, "gpu=None"),
    ({"tensor": 3}, r"tensor_parallel_size=3 .*32 attention heads"),
    ({"tensor": 64}, r"tensor_parallel_size=64 .*32 attention heads"),
    ({"tensor": 0}, "tensor_parallel_size=0 .*>= 1"),
    ({"pipe": 33}, "pipeline_parallel_size=33 .*at most 32, the model's layers"),
    ({"data": 1.5}, "data_parallel_size=1.5"),
    ({"experts": True}, "enable_expert_parallel=True .*only for models with experts"),
    ({"batch": 0}, "batch=0"),
    ({"context": "many"}, "context='many'"),
    ({"context": 131_073}, "context=131073 .*at most 131072, the model's context"),
    ({"dtype": "int4"}, "dtype='int4'"),
    ({"quantization": "gguf"}, "quantization='gguf'"),
    ({"kv_cache_dtype": "fp4"}, "kv_cache_dtype='fp4'"),
    ({"gpu": "a100-80", "kv_cache_dtype": "fp8"}, r"kv_cache_dtype='fp8' .*8\.9 or newer, this one has 8\.0"),
    ({"max_num_batched_tokens": 1}, "max_num_batched_tokens=1"),
    ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization=1.5"),
    ({"gpus_per_node": 0}, "gpus_per_node=0"),
])
def test_parameters(given, message):
    with pytest.raises(ParameterError, match=message):
        planned("llama-3.1-8b", **given)


def test_experts_that_do_not_divide():
    with pytest.raises(ParameterError, match=r"data_parallel_size=3 .*128 experts"):
        planned("qwen3-30b-a3b", data=3, experts=True)


@pytest.mark.parametrize("model", ["", None, 3])
def test_a_model_has_a_name(model):
    with pytest.raises(ParameterError, match="model="):
        jaxllm.plan(model, "h200")


def test_a_model_that_is_not_there():
    with pytest.raises(ModelNotFoundError):
        jaxllm.plan("./nowhere", "h200")


def test_a_model_that_is_not_supported():
    with pytest.raises(UnsupportedModelError, match="Mamba"):
        jaxllm.plan({"architectures": ["MambaForCausalLM"]}, "h200")


def test_a_plan_is_frozen_and_is_json():
    plan = planned("llama-3.1-70b", tensor=4, pipe=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.fits = False
    found = json.loads(json.dumps(plan.to_dict()))
    assert found["mesh"] == {"data": 1, "pipe": 2, "tensor": 4, "expert_parallel": False, "gpus_per_node": 8, "gpus": 8,
                             "nodes": 1, "name": "T4 x P2"}
    assert found["decode"]["limit"] == plan.decode.limit
    assert len(found["stages"]) == 2
    assert (CONFIGS / "llama-3.1-70b.json").exists()
