"""``BeamSearchParams`` and ``LLM.beam_search`` as a user meets them."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from tiny_folder import write_tiny_folder

from jaxllm import LLM, BeamSearchOutput, BeamSearchParams, BeamSearchSequence, ParameterError, SamplingParams
from jaxllm.arguments.beam_search import BEAM_SEARCH_ARGUMENTS, BEAM_SEARCH_FIELDS

SIZES = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 96, "block_size": 8}
SEARCH = BeamSearchParams(beam_width=3, max_tokens=6)


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return LLM(write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny"), **SIZES)


@pytest.fixture(autouse=True)
def _nothing_leaks(request):
    yield
    if "llm" in request.fixturenames:
        engine = request.getfixturevalue("llm").engine
        engine.check_integrity()
        assert not engine.has_unfinished()
        assert engine.stats().kv_blocks_used == 0


@pytest.mark.parametrize(("name", "value"), [
    ("beam_width", 0), ("beam_width", 1.5), ("beam_width", True), ("beam_width", None), ("max_tokens", 0),
    ("max_tokens", None), ("ignore_eos", 1), ("temperature", 0.5), ("temperature", -1), ("temperature", True),
    ("temperature", "0"), ("temperature", np.array([0.0, 1.0])), ("length_penalty", math.inf),
    ("length_penalty", math.nan), ("length_penalty", "1"), ("length_penalty", 1e3), ("length_penalty", -1e3),
    ("early_stopping", None), ("early_stopping", 1),
    ("early_stopping", "always"), ("stop", ""), ("stop", ["a", ""]), ("stop", 3), ("stop_token_ids", [-1]),
    ("stop_token_ids", 7), ("include_stop_str_in_output", None), ("num_return_sequences", 0),
    ("num_return_sequences", 4), ("num_return_sequences", 2.0), ("structured_outputs", {"json": "{}"}),
    ("best_of", 3),
])
def test_values_outside_their_range_are_refused_by_name(name, value):
    with pytest.raises(ParameterError) as caught:
        BeamSearchParams(**{"beam_width": 3, "max_tokens": 40, name: value})
    assert caught.value.parameter == name


def test_values_at_the_edge_of_their_range_are_taken():
    BeamSearchParams(1, 1, temperature=1, length_penalty=-5, early_stopping="never", stop=[], stop_token_ids=[0],
                     num_return_sequences=1, structured_outputs=None)
    # With one token every length is 1.
    BeamSearchParams(1, 1, length_penalty=1e9)
    assert BeamSearchParams(np.int64(2), np.int32(3)).num_returned == 2
    assert BeamSearchParams(4, 3, num_return_sequences=2).num_returned == 2
    assert BeamSearchParams(4, 3, stop="a").stop_strings == ("a",)


def test_parameters_are_frozen_and_replaced():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SEARCH.beam_width = 2
    assert SEARCH.replace(beam_width=2) == BeamSearchParams(2, 6)
    with pytest.raises(ParameterError):
        SEARCH.replace(beam_width=0)


def test_outputs_come_in_the_order_of_the_prompts(llm):
    texts = ["aa", "b", "cccc", "dd"]
    outputs = llm.beam_search(texts, [SEARCH.replace(max_tokens=6 - number) for number in range(4)])
    assert [output.prompt for output in outputs] == texts
    for number, output in enumerate(outputs):
        assert isinstance(output, BeamSearchOutput)
        assert output.finished
        assert output.error is None
        assert len(output.sequences) == 3
        assert max(len(found.token_ids) for found in output.sequences) <= 6 - number
        assert all(isinstance(found, BeamSearchSequence) for found in output.sequences)


def test_text_is_the_tokenizers_decode_of_the_ids(llm):
    (output,) = llm.beam_search("é", SEARCH)
    for found in output.sequences:
        assert found.text == llm.get_tokenizer().decode(found.token_ids)


@pytest.mark.parametrize("prompt", ["abc", [65, 66], {"prompt": "abc"}, {"prompt_token_ids": [65, 66]}, np.array([65])])
def test_a_single_prompt_of_any_form_gives_one_output(llm, prompt):
    (output,) = llm.beam_search(prompt, SEARCH)
    assert len(output.sequences) == 3


def test_fewer_sequences_than_beams_are_the_best_of_them(llm):
    (all_of_them,) = llm.beam_search("abc", SEARCH)
    (some,) = llm.beam_search("abc", SEARCH.replace(num_return_sequences=2))
    assert some.sequences == all_of_them.sequences[:2]


def test_bad_prompts_carry_their_errors_and_the_others_finish(llm):
    prompts = ["good", "", "x" * 96, [5, 264], 7.5, "good"]
    outputs = llm.beam_search(prompts, SEARCH)
    assert [index for index, output in enumerate(outputs) if output.error] == [1, 2, 3, 4]
    assert all(isinstance(output, BeamSearchOutput) and output.finished for output in outputs)
    assert outputs[1].sequences == []
    assert outputs[3].error.parameter == "prompt_token_ids"
    assert outputs[0].sequences == outputs[5].sequences


def test_too_many_beams_are_an_error_of_that_prompt_alone(llm):
    wide, fine = llm.beam_search(["a", "b"], [SEARCH.replace(beam_width=9), SEARCH])
    assert wide.error.parameter == "beam_width"
    assert "max_num_seqs" in wide.error.message
    assert fine.error is None


def test_raise_on_error_raises_and_leaves_nothing(llm):
    with pytest.raises(ParameterError, match="at least one token"):
        llm.beam_search(["good", ""], SEARCH, raise_on_error=True)


@pytest.mark.parametrize("params", [None, SamplingParams(), [SEARCH], [SEARCH, None], {"beam_width": 3}])
def test_what_are_no_parameters_is_refused(llm, params):
    with pytest.raises(ParameterError) as caught:
        llm.beam_search(["a", "b"], params)
    assert caught.value.parameter == "params"


@pytest.mark.parametrize(("name", "value"), [("concurrency_limit", 4), ("lora_request", "a"), ("n", 3)])
def test_arguments_that_are_not_there_are_refused_by_name(llm, name, value):
    with pytest.raises(ParameterError) as caught:
        llm.beam_search("a", SEARCH, **{name: value})
    assert caught.value.parameter == name


def test_vllms_defaults_of_arguments_that_are_not_there_are_taken(llm):
    llm.beam_search("a", SEARCH, lora_request=None, concurrency_limit=None)


def test_the_tables_of_arguments_name_what_there_is():
    fields = {field.name for field in dataclasses.fields(BeamSearchParams)}
    honoured = {argument.name for argument in BEAM_SEARCH_FIELDS.arguments if argument.honoured}
    assert fields == honoured | set(BEAM_SEARCH_FIELDS.own)
    assert {argument.name for argument in BEAM_SEARCH_ARGUMENTS.arguments if argument.honoured} == {
        "prompts", "params", "use_tqdm"}


def test_searches_and_samples_share_the_engine(llm):
    llm.engine.add_request("abc", SEARCH, request_id="search")
    llm.engine.add_request("abc", SamplingParams(max_tokens=9, temperature=0), request_id="sample")
    done = {}
    while llm.engine.has_unfinished():
        done.update({output.request_id: output for output in llm.engine.step() if output.finished})
    assert done["search"].sequences == llm.beam_search("abc", SEARCH)[0].sequences
    assert done["sample"].outputs[0].token_ids == llm.generate(
        "abc", SamplingParams(max_tokens=9, temperature=0))[0].outputs[0].token_ids
