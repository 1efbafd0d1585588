"""Guessing ahead changes how many steps it takes, and not a bit of what comes out of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixes import mixed_requests
from scripted_model import START, engine_on, llm_on, path_table, spelling
from support import bits, check_idle, greedy, pool_bytes, prompts, run, tiny_engine

from jaxllm import ParameterError
from jaxllm.sampling_params import SamplingParams

CYCLE = [START, 1, 2, 3, 4, 5, 6, 1]
"""A text that says 1 to 6 again and again."""
PROMPT = [1, 2, 3, 4, 5, 6, START]
LONG = {"max_model_len": 256, "max_num_batched_tokens": 64}
"""Room for enough tokens that guessing begins to be trusted."""
OVERLAP = pytest.mark.parametrize("overlap", [False, True], ids=["step by step", "overlapped"])


def both(table, requests, tokenizer=None, **sizes):
    """The outputs with and without speculation, and the figures of the engine that had it."""
    plain = run(engine_on(table, tokenizer, speculative_config=None, **{**LONG, **sizes}), requests)
    engine = engine_on(table, tokenizer, **{**LONG, **sizes})
    guessed = run(engine, requests)
    check_idle(engine)
    return plain, guessed, engine.stats()


def noisy_table():
    """The cycle, with a chance of leaving it for anything after each token."""
    table = path_table(CYCLE, logit=6.0)
    table[table.sum(-1) == 0, 1] = 6.0
    return table


@OVERLAP
@pytest.mark.case(33)
@pytest.mark.parametrize("logprobs", [None, 0, 5])
def test_a_repetitive_script_comes_out_the_same_in_far_fewer_steps(overlap, logprobs):
    requests = [(PROMPT, greedy(120, logprobs=logprobs))]
    (plain,), (guessed,), stats = both(path_table(CYCLE), requests, overlap=overlap)
    assert bits(guessed) == bits(plain)
    assert guessed.outputs[0].token_ids == [1 + number % 6 for number in range(120)]
    assert stats.num_steps < 40
    assert stats.num_accepted_tokens > 80


@OVERLAP
@pytest.mark.case(33)
@pytest.mark.parametrize("options", [
    {"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.3, "top_k": 8}, {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "logprobs": 3, "logprobs_mode": "processed_logprobs", "top_p": 0.95},
], ids=str)
def test_drafts_that_turn_out_wrong_leave_no_trace(overlap, options):
    requests = [(PROMPT, SamplingParams(seed=seed, max_tokens=100, ignore_eos=True, **options)) for seed in range(3)]
    plain, guessed, stats = both(noisy_table(), requests, overlap=overlap, max_num_seqs=32, max_num_batched_tokens=64)
    assert [bits(output) for output in guessed] == [bits(output) for output in plain]
    assert 0 < stats.num_accepted_tokens <= stats.num_draft_tokens
    assert stats.num_accepted_tokens < stats.num_draft_tokens or options["temperature"] == 0


@pytest.mark.case(34)
@pytest.mark.parametrize("options", [
    {"min_p": 0.3}, {"logit_bias": {7: 20.0}}, {"banned_token_ids": [4]}, {"allowed_token_ids": [1, 2, 3]},
    {"min_tokens": 50, "stop_token_ids": [3]}, {"presence_penalty": 1.5}, {"frequency_penalty": 0.8},
    {"repetition_penalty": 1.4}, {"logprobs": 30}, {"logprob_token_ids": [1, 2]}, {"n": 3},
    {"prompt_logprobs": 2}, {"stop_token_ids": [5]},
], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_option_is_honoured(options, temperature):
    params = SamplingParams(**{"temperature": temperature, "seed": 5, "max_tokens": 80, "ignore_eos": True, **options})
    plain, guessed, _ = both(noisy_table(), [(PROMPT, params), (PROMPT, greedy(60))], max_logprobs=-1)
    assert [bits(output) for output in guessed] == [bits(output) for output in plain]


@pytest.mark.case(34)
@pytest.mark.parametrize("options", [
    {"presence_penalty": 0.5}, {"frequency_penalty": 0.1}, {"repetition_penalty": 1.1}, {"logprobs": -1},
    {"logprob_token_ids": [1]}, {"bad_words": ["xy"]}], ids=str)
def test_a_request_that_counts_its_tokens_is_not_guessed_for_and_others_beside_it_are(options):
    pieces = ["a", "b", "c", "d", "e", "f", "x", "y"]
    for requests, guesses in (([greedy(60, **options)], False), ([greedy(60, **options), greedy(60)], True)):
        _, _, stats = both(path_table(CYCLE), [(PROMPT, each) for each in requests], spelling(*pieces), max_logprobs=-1)
        assert (stats.num_draft_tokens > 0) == guesses


@OVERLAP
@pytest.mark.parametrize("max_tokens", [1, 2, 9, 15, 16, *(
    pytest.param(number, marks=pytest.mark.sweep) for number in range(3, 41) if number not in (9, 15, 16))])
def test_an_output_ends_at_its_length_wherever_drafts_would_have_led(overlap, max_tokens):
    _, (output,), _ = both(path_table(CYCLE), [([*PROMPT[:-1], *PROMPT], greedy(max_tokens))], overlap=overlap)
    assert output.outputs[0].token_ids == [1 + number % 6 for number in range(max_tokens)]
    assert output.outputs[0].finish_reason == "length"


def test_an_output_fills_the_context_to_the_last_token():
    plain, guessed, stats = both(path_table(CYCLE), [(PROMPT, greedy(None))], max_model_len=96)
    assert bits(guessed[0]) == bits(plain[0])
    assert len(PROMPT) + len(guessed[0].outputs[0].token_ids) == 96
    assert stats.num_accepted_tokens > 0


@OVERLAP
@pytest.mark.parametrize("stop", [{"stop": "cd"}, {"stop": "fab"}, {"stop_token_ids": [4]}, {"stop": "e"}])
@pytest.mark.parametrize("min_tokens", [0, 31, *(pytest.param(number, marks=pytest.mark.sweep) for number in (30, 33))])
def test_a_stop_among_accepted_drafts_ends_the_output_there(overlap, stop, min_tokens):
    pieces = ["a", "b", "c", "d", "e", "f"]
    params = SamplingParams(temperature=0.0, max_tokens=90, min_tokens=min_tokens, ignore_eos=True, logprobs=1, **stop)
    (plain,), (guessed,), stats = both(path_table(CYCLE), [(PROMPT, params)], spelling(*pieces), overlap=overlap)
    assert bits(guessed) == bits(plain)
    assert guessed.outputs[0].text == plain.outputs[0].text
    assert len(guessed.outputs[0].logprobs) == len(guessed.outputs[0].token_ids)
    assert guessed.outputs[0].finish_reason == "stop"
    assert stats.num_accepted_tokens > 0 or not min_tokens


SIZES = {
    "together": {"max_num_seqs": 32}, "two at a time": {"max_num_seqs": 2},
    "preempted": {"kv_cache_bytes": pool_bytes(17)},
    "preempted to host memory": {"kv_cache_bytes": pool_bytes(17), "swap_bytes": 1 << 20},
    "token budget 16": {"max_num_batched_tokens": 16}, "no prefix cache": {"enable_prefix_caching": False},
    "few guesses from one token": {"speculative_config": {"num_speculative_tokens": 3, "prompt_lookup_max": 1}},
}


@OVERLAP
@pytest.mark.parametrize("setting", [
    name if name in ("together", "preempted to host memory") else pytest.param(name, marks=pytest.mark.sweep)
    for name in SIZES])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.sweep)])
def test_random_mixes_come_out_the_same_under_every_schedule(setting, overlap, seed):
    requests = [([*prompt, *prompt][:60], params) for prompt, params in mixed_requests(4, seed)]
    requests += [([*prompt, *prompt], greedy(40)) for prompt in prompts(3, seed, low=5, high=20)]
    # Whatever the model's weights, these repeat themselves.
    requests += [(prompts(1, seed)[0], greedy(40, allowed_token_ids=[7])),
                 (prompts(1, seed)[0], SamplingParams(seed=seed, max_tokens=40, allowed_token_ids=[7, 9]))]
    plain = run(tiny_engine(speculative_config=None, overlap=False), requests)
    engine = tiny_engine(overlap=overlap, **SIZES[setting])
    assert [bits(output) for output in run(engine, requests)] == [bits(output) for output in plain]
    check_idle(engine)
    stats = engine.stats()
    assert stats.num_accepted_tokens > 0
    assert stats.num_preemptions > 0 or "preempted" not in setting


def test_rejected_tokens_are_never_found_in_the_prefix_cache():
    """What a rejected draft has left in a block is not what another prompt finds there."""
    table = noisy_table()
    engine = engine_on(table, **LONG)
    params = SamplingParams(seed=3, max_tokens=100, ignore_eos=True)
    (first,) = run(engine, [(PROMPT, params)])
    assert engine.stats().num_accepted_tokens < engine.stats().num_draft_tokens
    text = [*PROMPT, *first.outputs[0].token_ids]
    follow_up = SamplingParams(seed=9, max_tokens=20, ignore_eos=True, logprobs=3)
    for length in (40, 64, 90, len(text)):
        (cached,) = run(engine, [(text[:length], follow_up)])
        (fresh,) = run(engine_on(table, speculative_config=None, **LONG), [(text[:length], follow_up)])
        assert cached.num_cached_tokens >= length - 5
        assert bits(cached) == bits(fresh)


@OVERLAP
@settings(max_examples=10)
@given(cuts=st.lists(st.integers(0, 3), max_size=30))
def test_aborts_among_drafts_leave_nothing_behind(overlap, cuts):
    engine = engine_on(noisy_table(), overlap=overlap, **LONG)
    ids = [engine.add_request(PROMPT, SamplingParams(seed=seed, n=1 + seed % 2, max_tokens=60, ignore_eos=True))
           for seed in range(4)]
    for number, cut in enumerate(cuts):
        engine.step()
        engine.check_integrity()
        if number > 12:
            engine.abort(ids[cut])
    for request_id in ids:
        engine.abort(request_id)
    while engine.has_unfinished():
        engine.step()
    check_idle(engine)


def test_a_draft_after_which_no_token_can_be_chosen_fails_as_it_would_without():
    def engine_that_overflows_after_six(**sizes):
        engine = engine_on(path_table(CYCLE), **LONG, **sizes)
        head = engine.params["head"]["weight"].at[:, 6].set(3e38)
        engine.update_params({**engine.params, "head": {"weight": head}})
        return engine

    request = ([*PROMPT[:-1], *PROMPT], greedy(50))
    (plain,) = run(engine_that_overflows_after_six(speculative_config=None), [request])
    engine = engine_that_overflows_after_six()
    (guessed,) = run(engine, [request])
    assert guessed.outputs[0].token_ids == plain.outputs[0].token_ids == [1, 2, 3, 4, 5, 6]
    assert guessed.error == plain.error
    assert "no token could be chosen" in guessed.error.message
    check_idle(engine)


def test_once_warm_speculation_traces_nothing():
    engine = engine_on(noisy_table(), **LONG)
    engine.compile_all()
    before = dict(engine._runner.programs.traces)
    run(engine, [(PROMPT, SamplingParams(seed=seed, max_tokens=90, logprobs=seed or None)) for seed in range(3)])
    assert engine.stats().num_accepted_tokens > 0
    assert dict(engine._runner.programs.traces) == before


@pytest.mark.parametrize(("value", "named"), [
    ({"method": "eagle", "model": "x"}, "eagle"), ({"model": "draft", "num_speculative_tokens": 5}, "draft"),
    ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens"), ("ngram", "speculative_config"),
    ({"method": "ngram", "disable_by_batch_size": 8}, "disable_by_batch_size"),
])
@pytest.mark.case(34)
def test_other_ways_to_speculate_are_refused_by_name(tmp_path, value, named):
    with pytest.raises(ParameterError, match="speculative_config") as caught:
        llm_on(tmp_path / "m", path_table(CYCLE), speculative_config=value)
    assert named in str(caught.value)


@pytest.mark.parametrize(("value", "guesses"), [
    ("auto", True), (None, False), (False, False),
    ({"method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 4, "prompt_lookup_min": 2}, True)])
def test_it_is_on_by_default_and_can_be_turned_off(tmp_path, value, guesses):
    llm = llm_on(tmp_path / "m", path_table(CYCLE), speculative_config=value)
    (output,) = llm.generate([PROMPT], greedy(40, detokenize=False), use_tqdm=False)
    assert output.outputs[0].token_ids == [1 + number % 6 for number in range(40)]
    assert (llm.stats().num_accepted_tokens > 0) == guesses
