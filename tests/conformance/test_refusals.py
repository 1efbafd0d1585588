"""What jaxllm does not do yet is refused by name, never passed over in silence."""

from __future__ import annotations

import pytest
from scripted_model import START, engine_on, path_table, script, write_folder
from support import greedy, run

from jaxllm import LLM, ParameterError
from jaxllm.sampling_params import SamplingParams

SPECULATIONS = [
    ("speculative_config", {"model": "draft", "num_speculative_tokens": 5}),
    ("speculative_model", "[ngram]"),
    ("num_speculative_tokens", 5),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("model") / "m", script(3), "a", "b", "c")


@pytest.mark.case(33)
@pytest.mark.case(34)
@pytest.mark.parametrize(("name", "value"), SPECULATIONS)
def test_speculation_is_refused_by_name_before_anything_is_loaded(folder, name, value):
    with pytest.raises(ParameterError) as caught:
        LLM(folder, **{name: value})
    assert caught.value.parameter == name
    assert "specul" in str(caught.value).lower()


@pytest.mark.case(34)
@pytest.mark.parametrize(("options", "tokens"), [
    ({"logit_bias": {5: 40.0}}, [5, 5, 5]), ({"min_p": 0.5, "temperature": 9.0}, [1, 2, 3]),
    ({"min_tokens": 2, "stop_token_ids": [1, 2]}, [6, 6, 1])], ids=str)
def test_what_speculation_is_known_to_drop_is_honoured(options, tokens):
    table = path_table([START, 1, 2, 3])
    table[:, 6] = 10.0
    table[6, 1] = 20.0
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 3, "ignore_eos": True, "seed": 1, **options})
    (output,) = run(engine_on(table), [([START], params)])
    assert output.outputs[0].token_ids == tokens


@pytest.mark.case(14)
@pytest.mark.parametrize(("name", "value"), [
    ("enable_lora", True), ("max_loras", 2), ("max_lora_rank", 64)])
def test_adapters_are_refused_by_name_when_the_engine_is_made(folder, name, value):
    with pytest.raises(ParameterError) as caught:
        LLM(folder, **{name: value})
    assert caught.value.parameter == name


@pytest.mark.case(14)
def test_an_adapter_is_refused_by_name_in_every_call(folder):
    llm = LLM(folder, dtype="float32", max_model_len=64)
    calls = [
        lambda **options: llm.generate({"prompt_token_ids": [START]}, greedy(1), **options),
        lambda **options: llm.chat([{"role": "user", "content": "a"}], greedy(1), **options),
    ]
    for call in calls:
        with pytest.raises(ParameterError) as caught:
            call(lora_request=("name", 1, "/path"))
        assert caught.value.parameter == "lora_request"
        assert not llm.engine.has_unfinished()


@pytest.mark.case(14)
@pytest.mark.parametrize("name", ["enable_lora", "speculative_config"])
def test_saying_that_a_feature_is_off_is_no_mistake(folder, name):
    llm = LLM(folder, dtype="float32", max_model_len=64, **{name: False if name == "enable_lora" else None})
    assert llm.generate({"prompt_token_ids": [START]}, greedy(3))[0].outputs[0].text == "abc"
