"""``best_of`` ranks a request's samples, and says what it misses."""

from __future__ import annotations

import math

import pytest
from scripted_model import START, engine_on, flat_table
from support import run

from jaxllm import BeamSearchParams, SamplingParams, best_of
from jaxllm.errors import ParameterError
from jaxllm.outputs import CompletionOutput, OutputError, RequestOutput


def sample(index, tokens, logprob, text=""):
    return CompletionOutput(index=index, token_ids=[0] * tokens, cumulative_logprob=logprob, text=text)


def request(*samples, error=None):
    return RequestOutput(request_id="a", prompt=None, prompt_token_ids=[1], outputs=list(samples), error=error)


SAMPLES = request(sample(0, 4, -4.0, "aaa"), sample(1, 1, -1.5, "a"), sample(2, 10, -8.0, ""), sample(3, 4, -4.0, "aa"))


def indices(found):
    return [each.index for each in found]


def test_the_mean_logprob_does_not_favour_short_samples():
    assert indices(best_of(SAMPLES)) == [2]
    assert indices(best_of(SAMPLES, 4)) == [2, 0, 3, 1]


def test_the_cumulative_logprob_is_what_vllm_ranked_by():
    assert indices(best_of(SAMPLES, 4, by="cumulative_logprob")) == [1, 0, 3, 2]


def test_a_function_ranks_by_what_it_gives_and_ties_go_to_the_lower_index():
    assert indices(best_of(SAMPLES, 2, by=lambda each: len(each.text))) == [0, 3]
    assert indices(best_of(SAMPLES, 4, by=lambda each: True)) == [0, 1, 2, 3]
    assert indices(best_of(SAMPLES, 2, by=lambda each: -math.inf if each.index else math.inf)) == [0, 1]


def test_a_sample_without_tokens_comes_last():
    assert indices(best_of(request(sample(0, 0, 0.0), sample(1, 1, -90.0)), 2)) == [1, 0]


def test_samples_are_given_back_themselves():
    assert best_of(SAMPLES)[0] is SAMPLES.outputs[2]


@pytest.mark.parametrize(("output", "options", "name"), [
    (request(sample(0, 3, None)), {}, "logprobs"),
    (request(sample(0, 3, None)), {"by": "cumulative_logprob"}, "logprobs"),
    (SAMPLES, {"k": 0}, "k"), (SAMPLES, {"k": 5}, "k"), (SAMPLES, {"k": 1.0}, "k"), (SAMPLES, {"k": True}, "k"),
    (SAMPLES, {"by": "logprob"}, "by"), (SAMPLES, {"by": None}, "by"),
    (SAMPLES, {"by": lambda each: None}, "by"), (SAMPLES, {"by": lambda each: math.nan}, "by"),
    (SAMPLES, {"by": lambda each: 10**400}, "by"),
    ([SAMPLES], {}, "output"), (request(error=OutputError("EngineError", "lost")), {}, "output"),
])
def test_what_cannot_be_ranked_is_refused_by_name(output, options, name):
    with pytest.raises(ParameterError) as caught:
        best_of(output, **options)
    assert caught.value.parameter == name


def test_the_errors_of_a_function_are_its_own():
    with pytest.raises(ZeroDivisionError):
        best_of(SAMPLES, by=lambda each: 1 / 0)


def test_real_samples_and_hypotheses_are_ranked_alike():
    table = flat_table()
    table[:, 1:4] += [3, 2, 1]
    engine = engine_on(table)
    samples, beams = run(engine, [([START], SamplingParams(n=4, seed=3, max_tokens=6, logprobs=0)),
                                  ([START], BeamSearchParams(3, 4, ignore_eos=True))])
    ranked = best_of(samples, 4)
    means = [each.cumulative_logprob / len(each.token_ids) for each in ranked]
    assert means == sorted(means, reverse=True)
    assert sorted(indices(ranked)) == [0, 1, 2, 3]
    assert best_of(beams, 3) == beams.sequences
