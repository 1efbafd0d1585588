"""Lines of a results file: what of an output is in them, and that each is one line whatever it holds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scripted import scripted_engine
from support import run

from jaxllm import CompletionOutput, Logprob, OutputError, ParameterError, RequestOutput, SamplingParams
from jaxllm.batch.record import FIRST_BYTES, defaults_digest, encode, error_of, result_record
from jaxllm.structured import StructuredOutputsParams

HEADER = (3, "a", "0" * 16, "1" * 16)


def output_of(*samples, **changes):
    return RequestOutput(**{"request_id": "r", "prompt": "p", "prompt_token_ids": [1, 2, 3], "outputs": list(samples),
                            "num_cached_tokens": 2, **changes})


def test_an_output_is_recorded_with_what_repeats_it():
    sample = CompletionOutput(0, "text", [5, 6], finish_reason="stop", stop_reason="x", seed=9)
    assert result_record(*HEADER, output=output_of(sample)) == {
        "line": 3, "custom_id": "a", "request": "0" * 16, "defaults": "1" * 16,
        "num_prompt_tokens": 3, "num_cached_tokens": 2,
        "outputs": [{"index": 0, "text": "text", "token_ids": [5, 6], "finish_reason": "stop", "stop_reason": "x",
                     "seed": 9}],
        "error": None}


def test_a_failed_output_keeps_what_was_generated():
    sample = CompletionOutput(0, "te", [5], finish_reason="error", seed=9)
    error = OutputError("EngineError", "boom", "temperature")
    record = result_record(*HEADER, output=output_of(sample, error=error))
    assert record["outputs"][0]["token_ids"] == [5]
    assert record["error"] == {"type": "EngineError", "message": "boom", "parameter": "temperature"}
    assert result_record(*HEADER, error=error)["outputs"] == []


def test_log_probabilities_name_their_tokens_and_mode():
    line = {5: Logprob(-0.5, 1, "five", -0.75), 6: Logprob(-1.5, 2, "six", -1.75)}
    sample = CompletionOutput(0, "five", [5], [line], "processed_logprobs", [0.9], -0.5, "length", None, 9)
    record = json.loads(encode(result_record(*HEADER, output=output_of(
        sample, prompt_logprobs=[None, {2: Logprob(-2.0, 3)}, {3: Logprob(-math.inf, 4)}]))))
    five = {"token_id": 5, "token": "five", "logprob": -0.5, "rank": 1, "raw_logprob": -0.75}
    six = {"token_id": 6, "token": "six", "logprob": -1.5, "rank": 2, "raw_logprob": -1.75}
    (found,) = record["outputs"]
    assert found["logprobs"] == [{**five, "top": [five, six]}]
    assert (found["logprobs_mode"], found["cumulative_logprob"], found["kept_mass"]) == (
        "processed_logprobs", -0.5, [0.9])
    two = {"token_id": 2, "token": None, "logprob": -2.0, "rank": 3}
    three = {"token_id": 3, "token": None, "logprob": None, "rank": 4}
    assert record["prompt_logprobs"] == [None, {**two, "top": [two]}, {**three, "top": [three]}]


def test_outputs_of_an_engine_can_be_written():
    params = SamplingParams(max_tokens=3, n=2, logprobs=2, prompt_logprobs=None)
    (output,) = run(scripted_engine([20, 21, 22]), [([1, 2], params)])
    record = json.loads(encode(result_record(*HEADER, output=output)))
    assert [[entry["token_id"] for entry in sample["logprobs"]] for sample in record["outputs"]] == [[20, 21, 22]] * 2


@pytest.mark.parametrize("text", ["plain", "line\nfeed\rreturn", "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", "é 漢 🙂",
                                  "\x00", "half \ud83d and\u2028"])
def test_every_text_is_one_line_for_every_reader_and_comes_back(text):
    line = encode(result_record(1, text, "r", "d", output=output_of(CompletionOutput(0, text))))
    assert line.startswith(FIRST_BYTES)
    assert line.endswith(b"}\n")
    assert len(line.decode().splitlines()) == 1
    record = json.loads(line)
    assert (record["custom_id"], record["outputs"][0]["text"]) == (text, text)


def test_text_is_written_as_it_is_where_it_can_be():
    assert "漢".encode() in encode(result_record(1, "漢", "r", "d", error=OutputError("E", "")))


def test_numpys_numbers_are_numbers():
    sample = CompletionOutput(0, token_ids=[5], stop_reason=np.int64(5), seed=np.int64(7))
    record = json.loads(encode(result_record(*HEADER, output=output_of(sample))))
    assert (record["outputs"][0]["stop_reason"], record["outputs"][0]["seed"]) == (5, 7)


def test_errors_say_their_type_and_parameter():
    assert error_of(ParameterError("n", 0, "more")) == OutputError(
        "ParameterError", "n=0 is not allowed: more", "n")
    assert error_of(KeyError("x")) == OutputError("KeyError", "'x'", None)


def test_digests_tell_sampling_parameters_apart():
    every = [SamplingParams(), SamplingParams(temperature=0.5), SamplingParams(max_tokens=5),
             SamplingParams(stop="a"), SamplingParams(stop=["a", "b"]), SamplingParams(logit_bias={5: 1.0}),
             SamplingParams(logits_processors="one"), SamplingParams(logits_processors={"one": 1.0}),
             SamplingParams(structured_outputs=StructuredOutputsParams(regex="a")),
             SamplingParams(structured_outputs=StructuredOutputsParams(regex="b")),
             SamplingParams(structured_outputs=StructuredOutputsParams(choice=["a"]))]
    assert len({defaults_digest(params) for params in every}) == len(every)


def test_digests_are_of_values_and_those_left_at_their_defaults_do_not_count():
    assert defaults_digest(SamplingParams(top_p=1.0, stop=["a"])) == defaults_digest(SamplingParams(stop="a"))
    assert defaults_digest(SamplingParams(logit_bias={1: 1, 2: 2})) == defaults_digest(
        SamplingParams(logit_bias={"2": 2.0, "1": 1.0}))
    assert defaults_digest(SamplingParams(temperature=2, max_tokens=np.int64(5))) == defaults_digest(
        SamplingParams(temperature=2.0, max_tokens=5))
    # Results on disk hold it: another value for the same parameters would refuse every one of them.
    assert defaults_digest(SamplingParams()) == "01e7b720ff566d53"
