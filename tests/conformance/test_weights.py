"""Weights that change or go away: nothing computed with the old ones is used, and nothing runs without any."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from scripted_model import START, llm_on, script, table_params
from support import bits, greedy, prompts, run, tiny_engine, tiny_model

from jaxllm import BeamSearchParams
from jaxllm.errors import EngineError, ParameterError

PROMPTS = prompts(4, seed=3, low=20, high=40)
REQUESTS = [(prompt, greedy(6, logprobs=2, prompt_logprobs=1, seed=5)) for prompt in PROMPTS]
PLAIN = [(prompt, greedy(6, logprobs=2)) for prompt in PROMPTS]


def _params(seed):
    return tiny_model(seed=seed)[1]


@functools.cache
def _fresh(seed, *, plain=True):
    """What an engine that never had other weights gives."""
    engine = tiny_engine()
    engine.update_params(_params(seed))
    return [bits(output) for output in run(engine, PLAIN if plain else REQUESTS)]


@pytest.fixture(scope="module")
def shared():
    return tiny_engine()


@pytest.fixture
def engine(shared):
    shared.wake_up()
    shared.update_params(_params(0))
    return shared


def _answers(engine, requests=PLAIN):
    outputs = run(engine, requests)
    assert [output.error for output in outputs] == [None] * len(requests)
    return [bits(output) for output in outputs]


@pytest.mark.case(15)
def test_after_the_weights_change_a_prompt_is_answered_as_by_a_fresh_engine(engine):
    assert _answers(engine) == _fresh(0)
    assert any(output.num_cached_tokens for output in run(engine, PLAIN))
    engine.update_params(_params(1))
    outputs = run(engine, PLAIN)
    assert [output.num_cached_tokens for output in outputs] == [0] * len(PLAIN)
    assert [bits(output) for output in outputs] == _fresh(1) != _fresh(0)
    assert any(output.num_cached_tokens for output in run(engine, PLAIN))


@pytest.mark.case(15)
def test_going_back_to_old_weights_gives_the_old_answers(engine):
    for seed in (0, 1, 0, 1):
        engine.update_params(_params(seed))
        assert _answers(engine) == _fresh(seed)
    assert _answers(engine, REQUESTS) == _fresh(1, plain=False)


@pytest.mark.case(15)
def test_new_weights_are_not_compiled_for(engine):
    _answers(engine)
    traces = dict(engine._runner.programs.traces)
    engine.update_params(_params(1))
    _answers(engine)
    assert dict(engine._runner.programs.traces) == traces


@pytest.mark.case(15)
def test_arrays_that_are_changed_in_place_after_they_were_given_change_nothing(engine):
    given = jax.tree.map(lambda leaf: np.array(leaf), _params(1))
    engine.update_params(given)
    for leaf in jax.tree.leaves(given):
        leaf[...] = np.nan
    assert _answers(engine) == _fresh(1)


@pytest.mark.case(15)
def test_arrays_that_were_donated_elsewhere_are_missed_by_name_and_not_used(engine):
    given = jax.tree.map(lambda leaf: leaf + 0, _params(1))
    engine.update_params(given)
    for leaf in jax.tree.leaves(given):
        leaf.delete()
    for output in run(engine, PLAIN):
        assert "deleted" in output.error.message
    engine.update_params(_params(1))
    assert _answers(engine) == _fresh(1)


@pytest.mark.case(15)
def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(engine):
    without = {name: part for name, part in _params(1).items() if name != "norm"}
    longer = jax.tree.map(lambda leaf: np.concatenate([leaf, leaf]), _params(1))
    for wrong, name in ((without, "norm"), (longer, "embedding"), ({**_params(1), "more": np.ones(3)}, "more"), (
            None, "embedding"), ({}, "embedding")):
        with pytest.raises(ParameterError, match=name):
            engine.update_params(wrong)
        assert _answers(engine) == _fresh(0)


@pytest.mark.case(15)
def test_weights_do_not_change_under_a_running_request(engine):
    engine.add_request(*PLAIN[0])
    engine.step()
    for change in (lambda: engine.update_params(_params(1)), engine.sleep):
        with pytest.raises(EngineError, match="unfinished"):
            change()
    while engine.has_unfinished():
        (output,) = engine.step()
    assert bits(output) == _fresh(0)[0]


@pytest.mark.case(16)
@pytest.mark.parametrize("level", [1, 2])
def test_a_sleeping_engine_refuses_requests(engine, level):
    engine.sleep(level)
    with pytest.raises(EngineError, match="wake_up"):
        engine.add_request(*PLAIN[0])
    assert not engine.has_unfinished()


@pytest.mark.case(16)
def test_after_a_light_sleep_the_answers_are_the_same_from_an_empty_cache(engine):
    _answers(engine)
    engine.sleep(1)
    engine.wake_up()
    outputs = run(engine, PLAIN)
    assert [bits(output) for output in outputs] == _fresh(0)
    assert [output.num_cached_tokens for output in outputs] == [0] * len(PLAIN)


@pytest.mark.case(16)
def test_after_the_weights_were_dropped_requests_are_refused_until_there_are_some(engine):
    engine.sleep(2)
    engine.wake_up()
    for _ in range(2):
        with pytest.raises(EngineError, match="update_params"):
            engine.add_request(*PLAIN[0])
    engine.update_params(_params(1))
    assert _answers(engine) == _fresh(1)


@pytest.mark.case(16)
def test_weights_may_come_before_waking_up(engine):
    engine.sleep(2)
    engine.update_params(_params(1))
    engine.wake_up()
    assert _answers(engine) == _fresh(1)


@pytest.mark.case(16)
@pytest.mark.parametrize("again", [1, 2])
def test_dropped_weights_are_not_there_after_another_sleep(engine, again):
    engine.sleep(2)
    engine.wake_up()
    engine.sleep(again)
    engine.wake_up()
    with pytest.raises(EngineError, match="update_params"):
        engine.add_request(*PLAIN[0])
    engine.update_params(_params(0))
    assert _answers(engine) == _fresh(0)


@pytest.mark.case(16)
def test_a_deeper_sleep_on_top_of_a_light_one_drops_the_weights(engine):
    engine.sleep(1)
    engine.sleep(2)
    engine.wake_up()
    with pytest.raises(EngineError, match="update_params"):
        engine.add_request(*PLAIN[0])


@pytest.mark.case(16)
@pytest.mark.parametrize("level", [0, 3, "1", True, None])
def test_levels_that_do_not_exist_are_refused(engine, level):
    with pytest.raises(ParameterError, match="level"):
        engine.sleep(level)
    assert _answers(engine) == _fresh(0)


@pytest.mark.case(16)
def test_sleep_gives_the_memory_of_the_cache_back(engine):
    def live():
        return sum(array.nbytes for array in jax.live_arrays())

    pool = sum(array.nbytes for array in jax.tree.leaves(engine._runner.cache))
    before = live()
    engine.sleep(1)
    assert live() <= before - pool
    engine.wake_up()
    assert _answers(engine) == _fresh(0)


@pytest.mark.case(16)
def test_every_way_to_generate_says_that_there_are_no_weights(tmp_path):
    llm = llm_on(tmp_path / "m", script(3), "a", "b", "c")
    prompt = {"prompt_token_ids": [START]}
    llm.sleep(2)
    llm.wake_up()
    errors = [llm.generate(prompt, greedy(3))[0].error, llm.beam_search(prompt, BeamSearchParams(2, 3))[0].error,
              llm.score([[START]], [[1]])[0].error]
    for error in errors:
        assert error.type == "EngineError"
        assert "update_params" in error.message
    for call in (lambda: list(llm.stream(prompt, greedy(3))), lambda: llm.generate(prompt, raise_on_error=True)):
        with pytest.raises(EngineError, match="update_params"):
            call()
    llm.update_params(table_params(script(2)))
    assert llm.generate(prompt, greedy(3))[0].outputs[0].text == "abb"
