"""Log-probabilities against numpy on the table, and the same whatever else is asked for."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from scripted_model import SIZE, START, engine_on, spelling
from support import bits, greedy, pool_bytes, prompts, run, tiny_engine

from jaxllm.errors import ParameterError
from jaxllm.sampling_params import SamplingParams

TOLERANCE = 1e-5
"""Between a float32 log-softmax over 64 logits of size 10 and a float64 one: a few units in the last place of 10."""


def _table(seed=0):
    return np.random.default_rng(seed).normal(0, 3, (SIZE, SIZE)).astype(np.float32)


def _log_softmax(rows):
    rows = np.asarray(rows, np.float64)
    rows = rows - rows.max(-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(-1, keepdims=True))


def _check_line(line, token, logits, count):
    """One position: the token and the ``count`` most likely ones, all with the right numbers and ranks."""
    best = np.argsort(-logits, kind="stable")[:count].tolist()
    assert set(line) == {token, *best}
    assert next(iter(line)) == token
    for found, entry in line.items():
        assert entry.logprob == pytest.approx(_log_softmax(logits)[found], abs=TOLERANCE)
        assert entry.rank == 1 + int((logits > logits[found]).sum())


@pytest.mark.case(27)
@pytest.mark.parametrize("count", [0, 1, 20])
@pytest.mark.parametrize("prompt_count", [None, 0, 20])
def test_output_and_prompt_logprobs_are_returned_each_as_asked(count, prompt_count):
    table, prompt = _table(), [START, 9, 8, 7]
    params = SamplingParams(seed=1, max_tokens=6, logprobs=count, prompt_logprobs=prompt_count, ignore_eos=True)
    (output,) = run(engine_on(table), [(prompt, params)])
    sample = output.outputs[0]
    assert len(sample.logprobs) == 6
    for before, token, line in zip([prompt[-1], *sample.token_ids], sample.token_ids, sample.logprobs, strict=False):
        _check_line(line, token, table[before], count)
    assert sample.cumulative_logprob == pytest.approx(
        sum(_log_softmax(table[before])[token]
            for before, token in itertools.pairwise([prompt[-1], *sample.token_ids])), abs=6 * TOLERANCE)
    if prompt_count is None:
        assert output.prompt_logprobs is None
        return
    assert output.prompt_logprobs[0] is None
    assert len(output.prompt_logprobs) == len(prompt)
    for (before, token), line in zip(itertools.pairwise(prompt), output.prompt_logprobs[1:], strict=True):
        _check_line(line, token, table[before], prompt_count)


@pytest.mark.case(27)
def test_a_prompts_logprobs_alone_are_returned_without_those_of_the_output():
    (output,) = run(engine_on(_table()), [([START, 3], greedy(2, prompt_logprobs=1))])
    assert len(output.prompt_logprobs) == 2
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None


@pytest.mark.case(27)
def test_requests_of_a_batch_get_what_each_asked_for():
    wanted = [None, 0, 3, None, 20]
    outputs = run(engine_on(_table()), [([START, 5], greedy(4, logprobs=count)) for count in wanted])
    for count, output in zip(wanted, outputs, strict=True):
        if count is None:
            assert output.outputs[0].logprobs is None
        else:
            assert {len(line) for line in output.outputs[0].logprobs} == {max(count, 1)}
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1


@pytest.mark.case(27)
def test_every_sample_of_a_prompt_has_its_own_logprobs():
    table = _table()
    params = SamplingParams(n=4, seed=2, max_tokens=5, logprobs=2, ignore_eos=True)
    (output,) = run(engine_on(table), [([START], params)])
    assert len({tuple(sample.token_ids) for sample in output.outputs}) == 4
    for sample in output.outputs:
        for before, token, line in zip([START, *sample.token_ids], sample.token_ids, sample.logprobs, strict=False):
            _check_line(line, token, table[before], 2)


@pytest.mark.case(27)
def test_all_of_the_vocabulary_is_returned_where_that_is_asked_for():
    table, prompt = _table(), [START, 9, 8]
    params = SamplingParams(seed=1, max_tokens=4, logprobs=-1, prompt_logprobs=-1, ignore_eos=True)
    (output,) = run(engine_on(table, max_logprobs=-1), [(prompt, params)])
    sample = output.outputs[0]
    lines = [*output.prompt_logprobs[1:], *sample.logprobs]
    ids = [*prompt, *sample.token_ids]
    assert len(lines) == len(ids) - 1
    for (before, token), line in zip(itertools.pairwise(ids), lines, strict=True):
        assert len(line) == SIZE
        _check_line(line, token, table[before], SIZE)


@pytest.mark.case(27)
def test_the_logprobs_of_given_ids_are_returned_besides_the_others():
    table, wanted = _table(), [3, 60, 5]
    params = SamplingParams(seed=1, max_tokens=4, logprob_token_ids=wanted, ignore_eos=True)
    (output,) = run(engine_on(table), [([START], params)])
    sample = output.outputs[0]
    for before, token, line in zip([START, *sample.token_ids], sample.token_ids, sample.logprobs, strict=False):
        assert set(line) == {token, *wanted}
        for found, entry in line.items():
            assert entry.logprob == pytest.approx(_log_softmax(table[before])[found], abs=TOLERANCE)


@pytest.mark.case(27)
def test_logprobs_are_there_without_text():
    params = greedy(3, logprobs=1, detokenize=False)
    (output,) = run(engine_on(_table(), spelling("a")), [([START], params)])
    assert output.outputs[0].text == ""
    assert len(output.outputs[0].logprobs) == 3


@functools.cache
def _engine(caching):
    return tiny_engine(max_num_batched_tokens=24, enable_prefix_caching=caching)


@pytest.mark.case(13)
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 23, 24, 25, 64, 100])
def test_prompt_logprobs_after_a_plain_run_are_those_without_the_cache(length):
    prompt = prompts(1, seed=length, low=length, high=length + 1)[0]
    params = greedy(4, prompt_logprobs=1, logprobs=1)
    (wanted,) = run(_engine(False), [(prompt, params)])
    engine = _engine(True)
    engine.reset_prefix_cache()
    run(engine, [(prompt, greedy(1))])
    (plain,) = run(engine, [(prompt, greedy(4))])
    assert plain.num_cached_tokens == (length - 1) // 8 * 8
    for _ in range(2):
        (output,) = run(engine, [(prompt, params)])
        assert bits(output) == bits(wanted)
        assert len(output.prompt_logprobs) == length
        assert output.prompt_logprobs[0] is None
        assert [next(iter(line)) for line in output.prompt_logprobs[1:]] == prompt[1:]


@pytest.mark.case(13)
def test_requests_that_share_a_prefix_at_once_get_their_prompt_logprobs_whole():
    shared = prompts(1, seed=3, low=40, high=41)[0]
    requests = [(shared[:size] + [9] * extra, params)
                for size, extra in ((40, 0), (40, 5), (17, 3), (8, 0))
                for params in (greedy(3), greedy(3, prompt_logprobs=2), greedy(3, prompt_logprobs=0, n=3))]
    wanted = [bits(run(_engine(False), [request])[0]) for request in requests]
    _engine(True).reset_prefix_cache()
    for _ in range(2):
        assert [bits(output) for output in run(_engine(True), requests)] == wanted


@pytest.mark.case(13)
def test_a_run_with_prompt_logprobs_leaves_a_prefix_for_others():
    prompt = prompts(1, seed=4, low=30, high=31)[0]
    _engine(True).reset_prefix_cache()
    run(_engine(True), [(prompt, greedy(1, prompt_logprobs=0))])
    (output,) = run(_engine(True), [(prompt, greedy(1))])
    assert output.num_cached_tokens == 24


@pytest.mark.case(28)
@pytest.mark.parametrize("options", [
    {}, {"temperature": 1.0, "seed": 5}, {"n": 2, "temperature": 1.0, "seed": 5}, {"frequency_penalty": 0.5}], ids=str)
def test_preempted_requests_report_each_logprob_once_and_as_with_a_large_pool(options):
    requests = [(prompt, greedy(24, logprobs=2, prompt_logprobs=2, **options)) for prompt in prompts(8, seed=2)]
    wanted = [bits(output) for output in run(_engine(False), requests)]
    engine = tiny_engine(max_num_batched_tokens=24, kv_cache_bytes=pool_bytes(17))
    outputs = run(engine, requests)
    assert engine.stats().num_preemptions > 0
    assert max(output.metrics.num_preemptions for output in outputs) > 0
    assert [bits(output) for output in outputs] == wanted
    for output in outputs:
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
        assert {len(sample.logprobs) for sample in output.outputs} == {24}


@pytest.mark.case(13)
@pytest.mark.parametrize("start", [0, 1, 2, 8, 9, 17, 39, 40, 100])
def test_prompt_logprobs_from_a_position_on_are_those_of_the_whole_and_reuse_what_comes_before(start):
    prompt = prompts(1, seed=9, low=40, high=41)[0]
    params = greedy(3, prompt_logprobs=2, logprobs=1)
    (whole,) = run(_engine(False), [(prompt, params)])
    later = params.replace(prompt_logprobs_start=start)
    engine = _engine(True)
    for cached in (False, True):
        engine.reset_prefix_cache()
        if cached:
            run(engine, [(prompt, greedy(1))])
        (output,) = run(engine, [(prompt, later)])
        assert bits(output)[0] == bits(whole)[0]
        first = min(max(start, 1), 40)
        assert output.prompt_logprobs == [None] * first + whole.prompt_logprobs[first:]
        # The position before the first one wanted has to be computed.
        assert output.num_cached_tokens == (cached and (first - 1) // 8 * 8)


@pytest.mark.case(28)
def test_preempted_requests_report_prompt_logprobs_from_a_position_on_once():
    requests = [(prompt, greedy(24, prompt_logprobs=1, prompt_logprobs_start=1 + 3 * number))
                for number, prompt in enumerate(prompts(8, seed=2, low=20))]
    wanted = [bits(output) for output in run(_engine(False), requests)]
    engine = tiny_engine(max_num_batched_tokens=24, kv_cache_bytes=pool_bytes(17))
    for _ in range(2):
        assert [bits(output) for output in run(engine, requests)] == wanted
    assert engine.stats().num_preemptions > 0


def test_a_start_that_makes_no_sense_is_refused():
    for start, count in ((-1, 1), (1.5, 1), (True, 1), (3, None)):
        with pytest.raises(ParameterError, match="prompt_logprobs_start"):
            SamplingParams(prompt_logprobs=count, prompt_logprobs_start=start)
