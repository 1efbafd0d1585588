"""Raw and processed log-probabilities against numpy: which distribution, and that the output says so."""

from __future__ import annotations

import numpy as np
import pytest
from scripted_model import SIZE, START, engine_on, llm_on
from support import greedy, run

from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams

TABLE = np.random.default_rng(3).normal(0, 3, (SIZE, SIZE)).astype(np.float32)
TOLERANCE = 2e-5
"""Between a float32 log-softmax of logits up to 20 (at temperature 0.5) and a float64 one."""
OPTIONS = [
    {"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5}, {"temperature": 2.0, "top_k": 5}, {"min_p": 0.1},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.02}, {"frequency_penalty": 1.0},
    {"logit_bias": {5: 4.0}, "banned_token_ids": [6], "top_p": 0.95}, {"temperature": 0.0}, {"temperature": 0.0,
                                                                                             "top_p": 0.5}]


def _processed(logits, output, options):
    """Log-probabilities of the distribution drawn from, and the probability of what the filters keep, in float64.

    output: the tokens before, for the frequency penalty.
    """
    logits = logits.astype(np.float64)
    for token, bias in options.get("logit_bias", {}).items():
        logits[token] += bias
    logits -= options.get("frequency_penalty", 0.0) * np.bincount(np.asarray(output, int), minlength=SIZE)
    logits[options.get("banned_token_ids", [])] = -np.inf
    temperature = options.get("temperature", 1.0)
    probabilities = _softmax(logits / (temperature or 1.0))
    kept = np.ones(SIZE, bool)
    order = np.argsort(-probabilities, kind="stable")
    if temperature > 0:
        if options.get("top_k"):
            kept[order[options["top_k"]:]] = False
        kept &= probabilities >= options.get("min_p", 0.0) * probabilities.max()
        within = np.where(kept, probabilities, 0)[order]
        before = np.cumsum(within) - within
        kept[order] &= before < options.get("top_p", 1.0) * within.sum()
    mass = probabilities[kept].sum()
    with np.errstate(divide="ignore"):
        return np.log(np.where(kept, probabilities, 0) / mass), mass


def _softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def _sample(options, **more):
    params = SamplingParams(**{"seed": 4, "max_tokens": 10, "ignore_eos": True, "logprobs": 20, **options, **more})
    (output,) = run(engine_on(TABLE), [([START], params)])
    assert output.error is None
    return output.outputs[0]


@pytest.mark.case(26)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_raw_logprobs_are_of_the_logits_whatever_the_sampling(options):
    sample = _sample(options, logprobs_mode="raw_logprobs")
    assert sample.logprobs_mode == "raw_logprobs"
    for before, line in zip([START, *sample.token_ids], sample.logprobs, strict=False):
        expected = np.log(_softmax(TABLE[before].astype(np.float64)))
        for token, entry in line.items():
            assert entry.logprob == pytest.approx(expected[token], abs=TOLERANCE)


@pytest.mark.case(26)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_processed_logprobs_are_of_what_the_draw_saw(options):
    sample = _sample(options, logprobs_mode="processed_logprobs")
    assert sample.logprobs_mode == "processed_logprobs"
    assert len(sample.kept_mass) == len(sample.logprobs) == 10
    for number, (token, line) in enumerate(zip(sample.token_ids, sample.logprobs, strict=True)):
        before = [START, *sample.token_ids][number]
        expected, mass = _processed(TABLE[before], sample.token_ids[:number], options)
        raw = np.log(_softmax(TABLE[before].astype(np.float64)))
        assert token in line
        assert sample.kept_mass[number] == pytest.approx(mass, abs=TOLERANCE)
        for found, entry in line.items():
            assert np.isfinite(entry.logprob)
            assert entry.logprob == pytest.approx(expected[found], abs=TOLERANCE)
            assert entry.raw_logprob == pytest.approx(raw[found], abs=TOLERANCE)
        assert len(line) == min(20, np.isfinite(expected).sum())


@pytest.mark.case(26)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_mode_changes_no_token(options):
    raw, processed, neither = (_sample(options, **more) for more in (
        {"logprobs_mode": "raw_logprobs"}, {"logprobs_mode": "processed_logprobs"}, {"logprobs": None}))
    assert raw.token_ids == processed.token_ids == neither.token_ids
    assert (neither.logprobs, neither.logprobs_mode, neither.kept_mass) == (None, None, None)


@pytest.mark.case(26)
def test_the_raw_logprobs_given_beside_processed_ones_are_those_of_the_raw_mode_bit_for_bit():
    raw, processed = (_sample(OPTIONS[0], logprobs_mode=mode) for mode in ("raw_logprobs", "processed_logprobs"))
    for raw_line, line in zip(raw.logprobs, processed.logprobs, strict=True):
        shared = raw_line.keys() & line.keys()
        assert shared
        assert {token: line[token].raw_logprob for token in shared} == {
            token: raw_line[token].logprob for token in shared}


@pytest.mark.case(26)
def test_requests_of_both_modes_share_a_batch():
    options = {"seed": 4, "max_tokens": 6, "temperature": 0.5, "top_p": 0.9, "logprobs": 3, "ignore_eos": True}
    modes = ["raw_logprobs", "processed_logprobs", None] * 2
    outputs = run(engine_on(TABLE), [([START], SamplingParams(**options, logprobs_mode=mode)) for mode in modes])
    samples = [output.outputs[0] for output in outputs]
    assert [sample.logprobs_mode for sample in samples] == [mode or "raw_logprobs" for mode in modes]
    assert samples[0].logprobs == samples[2].logprobs == samples[3].logprobs
    assert samples[1].logprobs == samples[4].logprobs
    # Sharper and cut short: what was drawn is more likely in the distribution that it was drawn from.
    assert samples[1].cumulative_logprob > samples[0].cumulative_logprob
    assert len({tuple(sample.token_ids) for sample in samples}) == 1


@pytest.mark.case(26)
def test_prompt_logprobs_are_raw_in_every_mode():
    outputs = run(engine_on(TABLE), [
        ([START, 3, 9], greedy(1, prompt_logprobs=4, temperature=0.5, logprobs_mode=mode, logprobs=1))
        for mode in ("raw_logprobs", "processed_logprobs")])
    assert outputs[0].prompt_logprobs == outputs[1].prompt_logprobs


@pytest.mark.case(26)
def test_the_engine_s_mode_holds_for_requests_that_name_none(tmp_path):
    llm = llm_on(tmp_path / "m", TABLE, "a", logprobs_mode="processed_logprobs")
    modes = [llm.generate([START], greedy(1, logprobs=1, logprobs_mode=mode))[0].outputs[0].logprobs_mode
             for mode in (None, "raw_logprobs")]
    assert modes == ["processed_logprobs", "raw_logprobs"]


@pytest.mark.case(26)
@pytest.mark.parametrize("mode", ["raw_logits", "processed_logits", "raw", "", 5])
def test_modes_that_do_not_exist_are_refused(mode):
    with pytest.raises(ParameterError, match="logprobs_mode"):
        SamplingParams(logprobs_mode=mode)
