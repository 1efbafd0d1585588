"""What cannot be served is refused by name, alone, before it is computed; what breaks off leaves nothing behind."""

from __future__ import annotations

import signal

import numpy as np
import pytest
from scripted_model import SIZE, START, engine_on, flat_table, llm_on, path_table, script
from support import bits, check_idle, greedy, run, tiny_engine

from jaxllm import BeamSearchParams, ParameterError, Score
from jaxllm.sampling_params import SamplingParams

MAX_LEN = 24


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return llm_on(tmp_path_factory.mktemp("model") / "m", script(3), "a", "b", "c", special=["</s>"], end=["</s>"],
                  max_model_len=MAX_LEN)


@pytest.fixture(autouse=True)
def _nothing_leaks(llm):
    yield
    check_idle(llm.engine)


@pytest.fixture
def computed(llm, monkeypatch):
    """The plans that the engine ran."""
    plans, real = [], llm.engine._runner.dispatch
    monkeypatch.setattr(llm.engine._runner, "dispatch", lambda plan: plans.append(plan) or real(plan))
    return plans


@pytest.mark.case(11)
@pytest.mark.parametrize("max_tokens", [None, 1, 5])
def test_prompts_at_the_edge_of_the_context_fail_alone_and_once(llm, max_tokens):
    good = [START]
    lengths = {1: MAX_LEN - 1, 2: MAX_LEN, 4: MAX_LEN + 1, 5: 10 * MAX_LEN}
    prompts = [[START] * lengths[number] if number in lengths else good for number in range(7)]
    outputs = llm.generate(prompts, greedy(max_tokens), use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs if output.error is None] == [good, prompts[1], good, good]
    assert [number for number, output in enumerate(outputs) if output.error] == [2, 4, 5]
    assert len(outputs[1].outputs[0].token_ids) == 1
    assert outputs[1].outputs[0].finish_reason == "length"
    for number in (2, 4, 5):
        error = outputs[number].error
        assert error.type == "ParameterError"
        assert str(lengths[number]) in error.message
        assert str(MAX_LEN) in error.message
        assert not any(sample.token_ids or sample.text for sample in outputs[number].outputs)
    assert bits(outputs[0]) == bits(outputs[3]) == bits(outputs[6]) == bits(llm.generate(good, greedy(max_tokens))[0])


@pytest.mark.case(11)
def test_max_tokens_beyond_the_room_is_cut_to_it(llm):
    (output,) = llm.generate([START] * 20, greedy(1000), use_tqdm=False)
    assert len(output.outputs[0].token_ids) == MAX_LEN - 20
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.case(11)
@pytest.mark.parametrize("length", [MAX_LEN - 1, MAX_LEN, MAX_LEN + 1, 10 * MAX_LEN])
@pytest.mark.parametrize("max_tokens", [None, 1, 5])
def test_a_prompt_that_may_be_truncated_is_cut_from_the_left_to_leave_room(llm, length, max_tokens):
    prompt = [2] * (length - 1) + [START]
    (output,) = llm.generate(prompt, greedy(max_tokens, truncate_prompt_tokens=-1), use_tqdm=False)
    assert output.error is None
    assert output.prompt_token_ids == prompt[-(MAX_LEN - (max_tokens or 1)):]
    assert output.outputs[0].token_ids == [1, 2, 3, 3, 3][:max_tokens or 1]


@pytest.mark.case(12)
@pytest.mark.parametrize("prompt", [
    "", [], {"prompt": ""}, {"prompt_token_ids": []}, np.zeros(0, np.int32), [SIZE], [-1], [START, 2**31], [2**70],
    [1.0], ["a"], [[START]], [True], [None], {"prompt_token_ids": None}, {"prompt": None}, None, {}], ids=repr)
def test_a_prompt_that_cannot_be_is_refused_before_anything_is_computed(llm, computed, prompt):
    with pytest.raises(ParameterError) as caught:
        llm.engine.add_request(prompt, greedy(1))
    assert isinstance(caught.value, ValueError)
    assert caught.value.parameter in ("prompt", "prompt_token_ids")
    (before, failed, after) = llm.generate([[START], prompt, [START]], greedy(2), use_tqdm=False)
    assert failed.error.parameter == caught.value.parameter
    assert bits(before) == bits(after)
    assert {len(plan.sequences) for plan in computed} == {2}


@pytest.mark.case(12)
def test_an_empty_text_is_a_prompt_where_the_tokenizer_adds_bos(tmp_path):
    with_bos = llm_on(tmp_path / "m", path_table([2, 1]), "a", special=["<s>"], bos="<s>")
    (output,) = with_bos.generate("", greedy(1), use_tqdm=False)
    assert (output.prompt_token_ids, output.outputs[0].text) == ([2], "a")


@pytest.mark.case(12)
def test_a_hundred_prompts_with_bad_ones_among_them_give_the_good_ones_whole(llm):
    bad = {17: "", 50: [SIZE], 93: [START] * 99}
    prompts = [bad.get(number, [START] * (1 + number % 7)) for number in range(100)]
    outputs = llm.generate(prompts, greedy(3), use_tqdm=False)
    assert [number for number, output in enumerate(outputs) if output.error] == sorted(bad)
    assert {output.outputs[0].text for output in outputs if not output.error} == {"abc"}


@pytest.mark.case(21)
@pytest.mark.parametrize(("name", "value"), [
    ("logit_bias", {SIZE: 1.0}), ("logit_bias", {str(SIZE): 1.0}), ("logit_bias", {10**30: 1.0}),
    ("allowed_token_ids", [SIZE]), ("banned_token_ids", [SIZE]), ("stop_token_ids", [SIZE]),
    ("logprob_token_ids", [SIZE])])
def test_ids_that_the_vocabulary_lacks_are_refused_wherever_they_stand(llm, computed, name, value):
    params = SamplingParams(max_tokens=1, **{name: value})
    with pytest.raises(ParameterError, match=str(SIZE - 1)) as caught:
        llm.engine.add_request([START], params)
    assert caught.value.parameter == name
    good, bad = llm.generate([[START]] * 2, [greedy(1), params], use_tqdm=False)
    assert (good.error, bad.error.parameter) == (None, name)
    assert {len(plan.sequences) for plan in computed} == {1}


@pytest.mark.case(21)
@pytest.mark.parametrize("bias", [
    {-1: 1.0}, {"-1": 1.0}, {"a": 1.0}, {1.5: 1.0}, {True: 1.0}, {5: float("nan")}, {5: float("inf")}, {5: "x"},
    {5: None}, [(5, 1.0)]], ids=repr)
def test_a_bias_that_makes_no_sense_is_refused_when_it_is_written(bias):
    with pytest.raises(ParameterError, match="logit_bias"):
        SamplingParams(logit_bias=bias)


@pytest.mark.case(21)
@pytest.mark.parametrize("key", [5, "5", np.int64(5), np.uint8(5)], ids=repr)
def test_a_bias_reaches_its_token_whatever_kind_of_integer_names_it(key):
    params = greedy(2, logit_bias={key: 1.0})
    assert list(params.logit_bias) == [5]
    (output,) = run(engine_on(flat_table()), [([START], params)])
    assert output.outputs[0].token_ids == [5, 5]


@pytest.mark.case(21)
@pytest.mark.parametrize("value", [1e30, 1e300, -1e300, 100, -100])
def test_a_bias_of_any_size_leaves_a_token_to_choose(value):
    samples = run(engine_on(script(3)), [
        ([START], greedy(3, logit_bias={5: value}, logprobs=1)),
        ([START], SamplingParams(seed=1, max_tokens=3, ignore_eos=True, logit_bias={5: value}, top_p=0.9))])
    for output in samples:
        assert output.error is None
        assert output.outputs[0].token_ids == ([5, 5, 5] if value > 0 else [1, 2, 3])


@pytest.mark.case(30)
@pytest.mark.parametrize("step", [1, 2, 5])
def test_after_ctrl_c_within_a_step_the_next_call_returns_only_its_own(llm, monkeypatch, step):
    real, calls = llm.engine._runner.dispatch, []

    def dispatch(plan):
        calls.append(plan)
        if len(calls) == step:
            raise KeyboardInterrupt
        return real(plan)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine._runner, "dispatch", dispatch)
        outputs = llm.generate([[START] * 3] * 4, greedy(20, n=2), use_tqdm=False)
    assert len(outputs) == 4
    assert not any(sample.finish_reason == "length" for output in outputs for sample in output.outputs)
    assert not llm.engine.has_unfinished()
    assert llm.stats().kv_blocks_used == 0
    prompts = [[START] * 3, [START, 1]]
    again = llm.generate(prompts, greedy(4), use_tqdm=False)
    assert [output.prompt_token_ids for output in again] == prompts
    assert [output.outputs[0].text for output in again] == ["abcc", "bccc"]


@pytest.mark.case(30)
def test_ctrl_c_keeps_what_is_finished_and_ends_the_rest_with_what_they_have(llm, monkeypatch):
    real, calls = llm.engine._runner.dispatch, []

    def dispatch(plan):
        calls.append(plan)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return real(plan)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine._runner, "dispatch", dispatch)
        short, long = llm.generate([[START]] * 2, [greedy(2), greedy(20)], use_tqdm=False)
    assert (short.outputs[0].text, short.outputs[0].finish_reason) == ("ab", "length")
    assert (long.outputs[0].text, long.outputs[0].finish_reason) == ("abc", "abort")


@pytest.mark.case(30)
@pytest.mark.parametrize("way", ["generate", "stream", "chat", "beam_search", "score"])
def test_after_ctrl_c_in_any_call_every_other_call_returns_only_its_own(llm, monkeypatch, way):
    prompts = [[START] * 3, [START, 1]]
    talk = [[{"role": "user", "content": "abc"}]] * 2
    calls = {
        "generate": lambda: llm.generate(prompts, greedy(9), use_tqdm=False),
        "stream": lambda: list(llm.stream(prompts, greedy(9))),
        "chat": lambda: llm.chat(talk, greedy(9), use_tqdm=False, chat_template="{{ messages[0]['content'] }}"),
        "beam_search": lambda: llm.beam_search(prompts, BeamSearchParams(3, 9)),
        "score": lambda: llm.score(prompts, [[1, 2]] * 2, use_tqdm=False),
    }
    wanted = {name: _answers(call()) for name, call in calls.items()}
    real, steps = llm.engine._runner.dispatch, []

    def dispatch(plan):
        steps.append(plan)
        if len(steps) == (1 if way == "score" else 3):
            raise KeyboardInterrupt
        return real(plan)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine._runner, "dispatch", dispatch)
        assert _answers(calls[way]()) != wanted[way]
    assert not llm.engine.has_unfinished()
    assert {name: _answers(call()) for name, call in calls.items()} == wanted


def _answers(results):
    return [result if isinstance(result, Score) else (result.prompt_token_ids, bits(result)) for result in results]


@pytest.mark.case(30)
@pytest.mark.parametrize("error", [RuntimeError("out of memory"), MemoryError("x"), ValueError("x"), EOFError()])
def test_an_exception_within_a_step_fails_what_ran_and_the_waiting_go_on(error):
    engine = engine_on(script(3), max_num_seqs=1)
    real, steps = engine._runner.dispatch, []

    def dispatch(plan):
        steps.append(plan)
        if len(steps) == 2:
            raise error
        return real(plan)

    engine._runner.dispatch = dispatch
    failed, good = run(engine, [([START], greedy(5)), ([START], greedy(5))])
    assert failed.error.type == type(error).__name__
    assert failed.outputs[0].token_ids == [1]
    assert failed.outputs[0].finish_reason == "error"
    assert good.outputs[0].token_ids == [1, 2, 3, 3, 3]
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.case(30)
def test_a_step_that_loses_the_device_state_leaves_an_engine_that_answers_as_a_fresh_one():
    engine = tiny_engine()
    requests = [([9, 10, 11] * 5, greedy(6, logprobs=2)), ([9, 10, 11] * 5 + [4], greedy(6, repetition_penalty=1.3))]
    wanted = [bits(output) for output in run(tiny_engine(), requests)]
    real = engine._runner.dispatch

    def dispatch(plan):
        real(plan)
        for array in engine._runner.cache[0].values():
            array.delete()
        raise RuntimeError("the device has lost its memory")

    engine._runner.dispatch = dispatch
    for output in run(engine, requests):
        assert "lost its memory" in output.error.message
    engine._runner.dispatch = real
    assert [bits(output) for output in run(engine, requests)] == wanted
