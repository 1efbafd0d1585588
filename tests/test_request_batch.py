"""Batches of requests: errors stay with their prompts, streams end as batches do, Ctrl-C leaves nothing behind."""

from __future__ import annotations

import gc
import itertools
import signal

import pytest
from support import bits, check_idle
from tiny_folder import write_tiny_folder

from jaxllm import LLM, ParameterError, RequestError, SamplingParams
from jaxllm.structured import StructuredOutputsParams

SIZES = {"dtype": "float32", "max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 96, "block_size": 8}
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
TALK = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return LLM(write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny"), **SIZES)


@pytest.fixture(autouse=True)
def _nothing_leaks(llm):
    yield
    check_idle(llm.engine)


def test_outputs_come_in_the_order_of_the_prompts(llm):
    texts = [chr(65 + number) * (number + 1) for number in range(20)]
    wanted = [SHORT.replace(max_tokens=1 + (7 * number) % 11) for number in range(20)]
    outputs = llm.generate(texts, wanted)
    assert [output.prompt for output in outputs] == texts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [each.max_tokens for each in wanted]


def test_bad_prompts_carry_their_errors_and_the_others_finish(llm):
    prompts = ["good", "", "x" * 95, "x" * 96, "x" * 97, [5, 264], [-1], 7.5, "good"]
    outputs = llm.generate(prompts, SHORT)
    assert len(outputs) == len(prompts)
    failed = [index for index, output in enumerate(outputs) if output.error]
    assert failed == [1, 3, 4, 5, 6, 7]
    assert "96" in outputs[3].error.message
    assert "max_model_len" in outputs[3].error.message
    assert outputs[5].error.parameter == "prompt_token_ids"
    assert outputs[2].outputs[0].finish_reason == "length"
    assert len(outputs[2].outputs[0].token_ids) == 1
    assert bits(outputs[0]) == bits(outputs[8])


def test_raise_on_error_raises_and_leaves_nothing(llm):
    with pytest.raises(ParameterError, match="at least one token"):
        llm.generate(["good", ""], SHORT, raise_on_error=True)


def test_parameters_out_of_all_proportion_do_not_harm_their_neighbours(llm):
    (wanted,) = llm.generate("good", SHORT)
    extremes = [SamplingParams(min_tokens=2**40, ignore_eos=True), SamplingParams(top_k=10**30, max_tokens=2),
                SamplingParams(max_tokens=10**30), SamplingParams(seed=2**63 - 1, max_tokens=2)]
    outputs = llm.generate(["good"] * 5, [SHORT, *extremes])
    assert [output.error for output in outputs] == [None] * 5
    assert bits(outputs[0]) == bits(wanted)


def test_no_prompts_give_no_outputs(llm):
    assert llm.generate([], SHORT) == []


def test_stream_grows_and_ends_as_generate(llm):
    outputs = list(llm.stream("abc", SHORT))
    texts = [output.outputs[0].text for output in outputs]
    assert [len(output.outputs[0].token_ids) for output in outputs] == list(range(1, 9))
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert outputs[-1].finished
    assert bits(outputs[-1]) == bits(llm.generate("abc", SHORT)[0])


def test_leaving_a_stream_aborts_it(llm):
    for _ in llm.stream(["abc", "def"], SHORT):
        break
    gc.collect()
    assert not llm.engine.has_unfinished()


def test_generate_inside_a_stream_leaves_both_whole(llm):
    streamed = []
    for output in llm.stream("abc", SHORT):
        streamed.append(output)
        if len(streamed) == 2:
            inner = llm.generate("xyz", SHORT)
    assert bits(streamed[-1]) == bits(llm.generate("abc", SHORT)[0])
    assert bits(inner[0]) == bits(llm.generate("xyz", SHORT)[0])


def test_a_bad_conversation_fails_alone(llm):
    outputs = llm.chat([TALK, [{"content": "no role"}], TALK], SHORT)
    assert [output.error is None for output in outputs] == [True, False, True]
    with pytest.raises(ParameterError):
        llm.chat([TALK, [{"content": "no role"}]], SHORT, raise_on_error=True)


def test_ctrl_c_returns_what_is_finished_and_the_engine_goes_on(llm, monkeypatch):
    real, calls = llm.engine._runner.dispatch, []

    def dispatch(plan):
        calls.append(1)
        if len(calls) == 4:
            signal.raise_signal(signal.SIGINT)
        return real(plan)

    monkeypatch.setattr(llm.engine._runner, "dispatch", dispatch)
    outputs = llm.generate(["a", "b"], [SHORT.replace(max_tokens=2), SHORT.replace(max_tokens=30)])
    assert [output.outputs[0].finish_reason for output in outputs] == ["length", "abort"]
    assert len(outputs[1].outputs[0].token_ids) >= 2
    assert len(calls) <= 5
    assert llm.generate("c", SHORT)[0].outputs[0].finish_reason == "length"


def test_a_second_ctrl_c_raises_and_leaves_nothing(llm, monkeypatch):
    real = llm.engine._runner.dispatch

    def dispatch(plan):
        result = real(plan)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine._runner, "dispatch", dispatch)
        with pytest.raises(KeyboardInterrupt):
            llm.generate("a", SHORT)
    assert llm.generate("c", SHORT)[0].outputs[0].finish_reason == "length"


def test_ctrl_c_while_prompts_are_added_ends_them_all(llm, monkeypatch):
    real = llm.engine.add_request

    def add_request(prompt, *arguments, **options):
        if prompt == "b":
            signal.raise_signal(signal.SIGINT)
        return real(prompt, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "add_request", add_request)
        outputs = llm.generate(["a", "b", "c"], SHORT)
        assert [output.outputs[0].finish_reason for output in outputs] == ["abort"] * 3
        assert not llm.engine.has_unfinished()
        with pytest.raises(KeyboardInterrupt):
            llm.stream(["a", "b", "c"], SHORT)


def test_a_stream_that_is_never_read_leaves_nothing(llm):
    stream = llm.stream(["a", "b"], SHORT)
    assert llm.engine.has_unfinished()
    del stream
    gc.collect()
    assert not llm.engine.has_unfinished()


def test_a_bar_that_cannot_be_shown_leaves_nothing(llm, monkeypatch):
    def broken(*arguments, **options):
        raise BrokenPipeError

    monkeypatch.setattr("jaxllm.progress.tqdm", broken)
    with pytest.raises(BrokenPipeError):
        llm.generate(["a", "b"], SHORT)


BAD = {
    "too long": ("x" * 96, SHORT, "prompt length"),
    "empty": ("", SHORT, "prompt"),
    "an id that does not exist": ([5, 9999], SHORT, "prompt_token_ids"),
    "a grammar that nothing satisfies": (
        "a", SHORT.replace(ignore_eos=False, structured_outputs=StructuredOutputsParams(
            json={"type": "integer", "minimum": 5, "maximum": 1})), "structured_outputs"),
    "text that no tokenizer takes": ("\ud800", SHORT, "prompt"),
    "a parameter beyond the vocabulary": ("a", SHORT.replace(logit_bias={9999: 1.0}), "logit_bias"),
}


@pytest.mark.parametrize("kind", BAD)
def test_three_bad_requests_of_a_hundred_fail_alone(llm, kind):
    prompt, params, parameter = BAD[kind]
    bad = (0, 50, 99)
    outputs = llm.generate([prompt if place in bad else "good" for place in range(100)],
                           [params if place in bad else SHORT for place in range(100)])
    assert [place for place, output in enumerate(outputs) if output.error] == list(bad)
    (wanted,) = llm.generate("good", SHORT)
    for place, output in enumerate(outputs):
        if place in bad:
            assert output.error.message
            assert output.error.parameter == parameter
            assert output.finished
        else:
            assert bits(output) == bits(wanted)


@pytest.fixture
def failing_step(llm, monkeypatch):
    """The third step raises."""
    real, calls = llm.engine._runner.dispatch, []

    def dispatch(plan):
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError("no room")
        return real(plan)

    monkeypatch.setattr(llm.engine._runner, "dispatch", dispatch)


@pytest.mark.usefixtures("failing_step")
def test_a_step_that_fails_ends_its_requests_with_what_they_have(llm):
    outputs = llm.generate(["a", "b"], [SHORT.replace(max_tokens=1), SHORT])
    assert [output.error is None for output in outputs] == [True, False]
    assert (outputs[1].error.type, outputs[1].error.message) == ("MemoryError", "no room")
    assert len(outputs[1].outputs[0].token_ids) == 2
    assert llm.generate("c", SHORT)[0].error is None


@pytest.mark.usefixtures("failing_step")
def test_a_request_that_fails_while_it_runs_raises_with_its_output(llm):
    with pytest.raises(RequestError, match="MemoryError: no room") as caught:
        llm.generate(["a", "b"], [SHORT.replace(max_tokens=1), SHORT], raise_on_error=True)
    assert caught.value.output.prompt == "b"
    assert len(caught.value.output.outputs[0].token_ids) == 2
    assert not isinstance(caught.value, ValueError)
