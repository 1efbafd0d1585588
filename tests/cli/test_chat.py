"""``jaxllm chat``: the loop on answers that are dictated, and the whole on the tiny model."""

from __future__ import annotations

import io
import os
import signal
import types

import pytest

from jaxllm import CompletionOutput, OutputError, RequestOutput, SamplingParams
from jaxllm.cli import console
from jaxllm.cli.chat import Session
from jaxllm.cli.conversation import Conversation
from jaxllm.cli.messages import MessageReader
from jaxllm.tokenization import from_folder


class DictatedLLM:
    """Answers each prompt with the next of ``answers``: a text, or a function that makes the stream of outputs."""

    def __init__(self, answers, context=1000):
        self.answers = list(answers)
        self.prompts, self.params = [], []
        self.closed = 0
        self.engine = types.SimpleNamespace(config=types.SimpleNamespace(max_model_len=context))

    def stream(self, prompt, params):
        self.prompts.append(prompt["prompt"])
        self.params.append(params)
        answer = self.answers.pop(0)
        try:
            if isinstance(answer, str):
                yield output(answer[:2], None)
                yield output(answer, "stop")
            else:
                yield from answer()
        finally:
            self.closed += 1


def output(text, finish_reason, error=None):
    ids = list(range(len(text)))
    return RequestOutput("r", None, [1], [CompletionOutput(0, text, ids, finish_reason=finish_reason)], error=error)


@pytest.fixture
def talk(folder, monkeypatch, capsys):
    """Run the loop on lines of input; the session, its LLM, and what was said on both streams."""
    tokenizer = from_folder(folder)

    def run(lines, answers, *, context=1000, params=None, system=None):
        console.set_up(quiet=False, debug=False)
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        llm = DictatedLLM(answers, context)
        session = Session(llm, Conversation(tokenizer, context, system=system), params or SamplingParams())
        session.run(MessageReader())
        said = capsys.readouterr()
        assert llm.closed == len(llm.prompts)
        return session, llm, said.out, said.err

    return run


def turn(role, text):
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


OPEN = "<|im_start|>assistant\n"


def test_turns_are_kept_and_answers_alone_are_on_standard_output(talk):
    session, llm, out, err = talk("one\n\ntwo\n", ["first", "second"])
    assert out == "first\nsecond\n"
    assert llm.prompts == [turn("user", "one") + OPEN,
                           turn("user", "one") + turn("assistant", "first") + turn("user", "two") + OPEN]
    assert "5 tokens, finish: stop" in err
    assert not session.failed


def test_an_answer_may_take_the_room_left_in_the_context_but_no_more_than_asked(talk):
    _, llm, _, _ = talk("one\ntwo\n", ["a", "b"])
    used = [len(prompt.replace("<|im_start|>", "S").replace("<|im_end|>", "E")) for prompt in llm.prompts]
    assert [params.max_tokens for params in llm.params] == [1000 - count for count in used]
    _, llm, _, _ = talk("one\n", ["a"], params=SamplingParams(max_tokens=7, temperature=0.5))
    assert llm.params == [SamplingParams(max_tokens=7, temperature=0.5)]


@pytest.mark.parametrize("command", ["/reset", "/clear"])
def test_reset_forgets_the_turns_and_keeps_the_system_message(talk, command):
    _, llm, _, err = talk(f"one\n{command}\ntwo\n", ["a", "b"], system="short")
    assert llm.prompts[1] == turn("system", "short") + turn("user", "two") + OPEN
    assert "forgotten" in err


def test_system_sets_and_removes_the_system_message(talk):
    _, llm, _, _ = talk("one\n/system be kind\ntwo\n/system\nthree\n", ["a", "b", "c"])
    assert llm.prompts[1:] == [turn("system", "be kind") + turn("user", "two") + OPEN, turn("user", "three") + OPEN]


@pytest.mark.parametrize("command", ["/exit", "/quit", " /exit "])
def test_exit_leaves_at_once(talk, command):
    session, llm, _, _ = talk(f"{command}\none\n", [])
    assert llm.prompts == []
    assert not session.failed


def test_an_unknown_command_is_an_error_and_no_message(talk):
    session, llm, out, err = talk("/nope now\n", [])
    assert (llm.prompts, out, session.failed) == ([], "", True)
    assert "error: there is no command /nope" in err


def test_help_names_every_command(talk):
    _, _, out, err = talk("/help\n", [])
    assert out == ""
    for command in ("/reset", "/clear", "/system", "/exit", "/quit", "/help"):
        assert command in err


def test_ctrl_c_keeps_the_partial_answer_in_the_history(talk):
    def interrupted():
        yield output("par", None)
        os.kill(os.getpid(), signal.SIGINT)
        yield output("partial", None)
        pytest.fail("the answer went on after Ctrl-C")

    session, llm, out, err = talk("one\ntwo\n", [interrupted, "b"])
    assert out == "partial\nb\n"
    assert "(interrupted)" in err
    assert turn("assistant", "partial") in llm.prompts[1]
    assert not session.failed
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_question_whose_answer_never_began_leaves_nothing_behind(talk):
    def aborted():
        yield output("", "abort")

    _, llm, _, err = talk("one\ntwo\n", [aborted, "b"])
    assert llm.prompts[1] == turn("user", "two") + OPEN
    assert "(interrupted)" in err


def test_a_request_that_fails_is_reported_and_the_chat_goes_on(talk):
    def failing():
        yield output("par", "error", OutputError("EngineError", "out of luck"))

    session, llm, out, err = talk("one\ntwo\n", [failing, "b"])
    assert "error: out of luck" in err
    assert out == "par\nb\n"
    assert session.failed
    assert turn("assistant", "par") in llm.prompts[1]


def test_a_full_context_is_announced_when_turns_are_forgotten_and_when_an_answer_ends_in_it(talk):
    _, llm, _, err = talk("one\n" + "x" * 40 + "\n", ["a" * 30, "b"], context=100)
    assert llm.prompts[1] == turn("user", "x" * 40) + OPEN
    assert "the context of 100 tokens is full: the oldest turn of the conversation is forgotten" in err
    room = 1000 - len("Suser\noneE\nSassistant\n")
    _, _, _, err = talk("one\n", [lambda: iter([output("y" * room, "length")])])
    assert "the context of 1000 tokens is full: the answer ends here" in err


def test_a_message_that_cannot_fit_is_an_error_and_the_chat_goes_on(talk):
    session, llm, out, err = talk("x" * 200 + "\ntwo\n", ["b"], context=100)
    assert "error: the message is too long" in err
    assert llm.prompts == [turn("user", "two") + OPEN]
    assert (out, session.failed) == ("b\n", True)


def test_a_script_of_lines_gives_what_the_library_gives(run, folder, small, llm):
    params, messages, expected = SamplingParams(temperature=0.0, max_tokens=8), [], ""
    for text in ("hi", "go on"):
        messages.append({"role": "user", "content": text})
        (answer,) = llm.chat(messages, params)
        messages.append({"role": "assistant", "content": answer.outputs[0].text})
        expected += answer.outputs[0].text + "\n"
    result = run("chat", "-m", folder, *small, "--max-tokens", 8, stdin="hi\ngo on\n")
    assert (result.exit_code, result.stdout) == (0, expected)
    assert "prompt tokens from the cache" in result.stderr


def test_a_model_without_a_chat_template_is_refused_before_it_is_loaded(run, folder, tmp_path):
    for file in folder.iterdir():
        if file.name != "tokenizer_config.json":
            (tmp_path / file.name).symlink_to(file)
    result = run("chat", "-m", tmp_path, stdin="hi\n")
    assert result.exit_code == 1
    assert "a model with a chat template" in result.stderr
