"""What ends an output, where its text ends, and what is reported about it."""

from __future__ import annotations

import itertools
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_model import START, engine_on, llm_on, path_table, script, spelling
from support import run

from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import StopChecker

PROMPT = {"prompt_token_ids": [START]}


def _say(pieces, *, special=(), end=(), **options):
    """The sample of a request whose tokens spell ``pieces`` in order."""
    tokenizer = spelling(*pieces, special=special, end=end)
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": len(pieces) + len(special), **options})
    (output,) = run(engine_on(script(len(pieces) + len(special)), tokenizer), [([START], params)])
    assert output.error is None
    return output.outputs[0]


@pytest.mark.case(3)
@pytest.mark.parametrize(("pieces", "stop", "text", "kept", "count"), [
    (["AB", "C", "DEF", "G"], "DE", "ABC", "ABCDE", 3),
    (["AB", "C", "DEF", "G"], "CDEF", "AB", "ABCDEF", 3),
    (["AB", "C", "DEF", "G"], "BCD", "A", "ABCD", 3),
    (["aa", "aa", "ab", "c"], "aab", "aaa", "aaaaab", 3),
    (["x", "STOPSTOP", "y"], "STOP", "x", "xSTOP", 2),
    (["x", " ", "\n\n", "y"], "\n\n", "x ", "x \n\n", 3),
    (["x", b"\xc3", b"\xa9", "y"], "é", "x", "xé", 3),
    (["x", "é", "y"], "e", "xéy", "xéy", 3),
])
def test_the_text_ends_before_a_stop_string_wherever_it_lies_in_the_tokens(pieces, stop, text, kept, count):
    reason = ("length", None) if text == kept else ("stop", stop)
    for include, wanted in ((False, text), (True, kept)):
        sample = _say(pieces, stop=stop, include_stop_str_in_output=include)
        assert sample.text == wanted
        assert sample.token_ids == list(range(1, count + 1))
        assert (sample.finish_reason, sample.stop_reason) == reason


@pytest.mark.case(3)
@pytest.mark.parametrize(("stop", "reason"), [
    (["EF", "DE"], "DE"), (["F", "E", "D"], "D"), (["DEF", "EF"], "DEF"), (["BC", "DE"], "BC"), (["zz", "G"], "G")])
def test_of_several_stop_strings_the_first_to_complete_counts_and_of_those_the_longest(stop, reason):
    sample = _say(["AB", "C", "DEF", "G"], stop=stop)
    assert sample.stop_reason == reason
    assert sample.text == "ABCDEFG"[:"ABCDEFG".index(reason)]


@pytest.mark.case(3)
def test_a_stream_never_shows_the_beginning_of_a_stop_string_that_completes(tmp_path):
    llm = llm_on(tmp_path / "m", script(6), "ab", "<", "s", "<", "st", "op>", special=["</s>"], end=["</s>"])
    params = SamplingParams(temperature=0, max_tokens=6, stop="<stop>")
    texts = [output.outputs[0].text for output in llm.stream(PROMPT, params)]
    assert texts == ["ab", "ab", "ab", "ab<s", "ab<s", "ab<s"]
    assert llm.generate(PROMPT, params)[0].outputs[0].text == "ab<s"


@pytest.mark.case(3)
def test_a_stop_string_that_never_completes_is_shown_in_the_end():
    assert _say(["ab", "<", "s"], stop="<stop>").text == "ab<s"


@pytest.mark.case(3)
def test_a_special_token_that_is_hidden_is_not_part_of_the_text_that_stops():
    hidden = _say(["a"], special=["<tool>"], stop="<tool>")
    assert (hidden.text, hidden.finish_reason) == ("a", "length")
    shown = _say(["a"], special=["<tool>"], stop="<tool>", skip_special_tokens=False)
    assert (shown.text, shown.stop_reason) == ("a", "<tool>")


@pytest.mark.case(4)
@pytest.mark.parametrize("logprobs", [0, 1, 5])
@pytest.mark.parametrize("include", [False, True])
def test_ids_and_logprobs_end_with_the_token_that_completed_the_stop(logprobs, include):
    pieces = ["a", "b", "c", "d", "e", "f"]
    sample = _say(pieces, stop="cd", logprobs=logprobs, include_stop_str_in_output=include)
    assert sample.token_ids == [1, 2, 3, 4]
    assert len(sample.logprobs) == 4
    assert [next(iter(line)) for line in sample.logprobs] == sample.token_ids
    assert sample.cumulative_logprob == sum(
        line[token].logprob for token, line in zip(sample.token_ids, sample.logprobs, strict=True))
    assert sample.text == ("abcd" if include else "ab")


@pytest.mark.case(4)
@given(text=st.text("abc", max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
       cuts=st.lists(st.integers(0, 30), max_size=6))
def test_the_stop_does_not_depend_on_how_many_characters_arrive_at_once(text, stops, cuts):
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    shown = []
    for pieces in ([text], list(text), [text[i:j] for i, j in itertools.pairwise(ends)]):
        checker = StopChecker(stops)
        shown.append(("".join(checker.feed(piece) for piece in pieces) + checker.finish(), checker.stop_string))
    assert shown[0] == shown[1] == shown[2]
    found = re.search("|".join(map(re.escape, stops)), text)
    assert (shown[0][1] is None) == (found is None)
    first_end = min((text.index(stop) + len(stop) for stop in stops if stop in text), default=None)
    if first_end is not None:
        assert shown[0][0] + shown[0][1] == text[:first_end]


@pytest.mark.case(5)
@pytest.mark.parametrize("options", [{"stop_token_ids": [3]}, {}, {"stop_token_ids": [3], "logprobs": 1}], ids=str)
def test_a_hidden_token_that_ends_the_output_takes_nothing_from_the_text(options):
    sample = _say(["some", " text"], special=["<|im_end|>"], end=["<|im_end|>"], max_tokens=9, **options)
    assert sample.text == "some text"
    assert sample.token_ids == [1, 2, 3]
    assert sample.finish_reason == "stop"


@pytest.mark.case(5)
def test_what_a_stop_id_spells_is_part_of_the_text_unless_it_is_a_hidden_special_token():
    assert _say(["some", " text", "."], stop_token_ids=[3], max_tokens=9).text == "some text."
    shown = _say(["a"], special=["<end>"], stop_token_ids=[2], skip_special_tokens=False, max_tokens=9)
    assert shown.text == "a<end>"


@pytest.mark.case(5)
def test_a_stop_id_is_reported_but_the_end_of_the_sequence_is_not():
    special = ["<e>"]
    assert _say(["a"], special=special, end=special).stop_reason is None
    assert _say(["a"], special=special, stop_token_ids=[2]).stop_reason == 2
    assert _say(["a"], special=special, end=special, ignore_eos=True, stop_token_ids=[2]).stop_reason == 2


@pytest.mark.case(6)
@pytest.mark.parametrize("stop", ["z", "é", "🙂", "\n", "\x00", " ", "▁", "Ġ"])
@pytest.mark.parametrize("wrap", [str, lambda stop: [stop], lambda stop: (stop, stop)], ids=["str", "list", "tuple"])
def test_a_stop_string_that_never_occurs_changes_nothing(stop, wrap):
    sample = _say(["a", "b", "c"], stop=wrap(stop))
    assert (sample.text, sample.finish_reason, sample.stop_reason) == ("abc", "length", None)


@pytest.mark.case(7)
def test_a_stop_string_before_min_tokens_is_passed_over_and_the_next_one_stops():
    sample = _say(["a", "X", "b", "c", "d", "e", "X", "f"], stop="X", min_tokens=5)
    assert sample.text == "aXbcde"
    assert sample.token_ids == [1, 2, 3, 4, 5, 6, 7]
    assert sample.stop_reason == "X"


@pytest.mark.case(7)
@pytest.mark.parametrize(("min_tokens", "text", "count"), [(0, "a", 2), (1, "a", 2), (2, "aXb", 4), (3, "aXb", 4),
                                                           (4, "aXbX", 4)])
def test_the_first_token_after_min_tokens_can_stop(min_tokens, text, count):
    sample = _say(["a", "X", "b", "X"], stop="X", min_tokens=min_tokens)
    assert sample.text == text
    assert len(sample.token_ids) == count


@pytest.mark.case(7)
def test_a_stop_string_that_begins_before_min_tokens_and_completes_after_it_stops():
    sample = _say(["a", "X", "Y", "b"], stop="XY", min_tokens=2)
    assert (sample.text, sample.stop_reason) == ("a", "XY")


@pytest.mark.case(8)
@pytest.mark.parametrize("first", [0, 1])
def test_min_tokens_masks_every_end_of_sequence_id(tmp_path, first):
    special = ["</s>", "<end>"]
    table = path_table([START, 1, 2 + first])  # after the first token the model wants an end, the second or the first
    table[1, 4] = 20.0  # and next to it, a filler
    table[4, [2, 3]] = [30.0, 29.0]
    table[4, 5] = 20.0
    table[5, 3] = 30.0
    llm = llm_on(tmp_path / "m", table, "a", special=special, end=special)
    params = SamplingParams(temperature=0, max_tokens=9)
    assert llm.generate(PROMPT, params)[0].outputs[0].token_ids == [1, 2 + first]
    for options in ({}, {"ignore_eos": True, "stop_token_ids": [2, 3]}):
        masked = llm.generate(PROMPT, params.replace(min_tokens=3, **options))[0].outputs[0]
        assert masked.token_ids == [1, 4, 5, 3]
        assert masked.finish_reason == "stop"


@pytest.mark.case(9)
def test_ignore_eos_runs_to_max_tokens_over_every_end_of_sequence_id(tmp_path):
    special = ["</s>", "<end>"]
    table = path_table([START, 1, 2, 3, 1])
    llm = llm_on(tmp_path / "m", table, "a", special=special, end=special)
    for max_tokens in (1, 5, 9):
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        sample = llm.generate(PROMPT, params)[0].outputs[0]
        assert sample.token_ids == ([1, 2, 3] * 3)[:max_tokens]
        assert sample.finish_reason == "length"
    assert llm.generate(PROMPT, SamplingParams(temperature=0))[0].outputs[0].token_ids == [1, 2]


@pytest.mark.case(9)
def test_ignore_eos_leaves_stop_ids_and_stop_strings_in_force():
    special = ["</s>"]
    assert _say(["a"], special=special, end=special, ignore_eos=True, stop_token_ids=[1]).token_ids == [1]
    assert _say(["a", "b"], special=special, end=special, ignore_eos=True, stop="b").text == "a"


@pytest.mark.case(10)
def test_without_max_tokens_the_context_is_filled_and_that_is_said_once(tmp_path, caplog):
    llm = llm_on(tmp_path / "m", script(1), "a", max_model_len=24)
    with caplog.at_level(logging.WARNING, "jaxllm"):
        outputs = [llm.generate({"prompt_token_ids": [START] * length}, SamplingParams(temperature=0))[0]
                   for length in (1, 20, 23)]
        assert llm.generate(PROMPT)[0].outputs[0].finish_reason == "length"
    assert [len(output.outputs[0].token_ids) for output in outputs] == [23, 4, 1]
    assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
    assert caplog.text.count("max_tokens is not set") == 1
    assert "24 tokens" in caplog.text
