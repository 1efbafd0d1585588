from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenization.toy_tokenizers import byte_level_tokenizer

from jaxllm.tokenization import IncrementalDetokenizer, StopChecker, Tokenizer


def _oracle(text: str, stops: list[str], include: bool, ignored: int = 0) -> tuple[str, str | None]:
    """By definition: the match with the earliest end beyond ``ignored``, then the earliest start."""
    matches = [
        (start + len(stop), start, stop)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > ignored
    ]
    if not matches:
        return text, None
    end, start, stop = min(matches)
    return text[: end if include else start], stop


@given(
    chunks=st.lists(st.text(alphabet="ab", max_size=5), max_size=10),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3),
    include=st.booleans(),
    ignored_chunks=st.integers(0, 3),
)
def test_the_first_completed_stop_string_ends_the_text(
    chunks: list[str], stops: list[str], include: bool, ignored_chunks: int
) -> None:
    checker = StopChecker(stops, include_stop_str_in_output=include)
    shown = ""
    for index, chunk in enumerate(chunks):
        shown += checker.feed(chunk, armed=index >= ignored_chunks)
    text, stop = _oracle("".join(chunks), stops, include, len("".join(chunks[:ignored_chunks])))
    assert checker.stop_string == stop
    if stop is None:
        shown += checker.finish()
    assert shown == text


@given(
    text=st.text(alphabet="ab", max_size=12),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1),
)
def test_held_text_is_exactly_what_may_begin_a_stop_string(text: str, stops: list[str]) -> None:
    checker = StopChecker(stops)
    shown = checker.feed(text)
    if checker.stop_string is not None:
        return
    prefixes = {stop[:length] for stop in stops for length in range(1, len(stop))}
    held = max((length for length in range(len(text) + 1) if text[len(text) - length :] in prefixes), default=0)
    assert shown == text[: len(text) - held]


def _run(tokenizer: Tokenizer, ids: list[int], checker: StopChecker, min_tokens: int = 0) -> tuple[str, int]:
    """A generation loop in small: the text shown and the number of tokens taken."""
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = ""
    for count, token_id in enumerate(ids, start=1):
        shown += checker.feed(detokenizer.append([token_id]), armed=count >= min_tokens)
        if checker.stop_string is not None:
            return shown, count
    return shown + checker.feed(detokenizer.finish()) + checker.finish(), len(ids)


def test_a_stop_string_inside_a_longer_token_is_found() -> None:
    """Case 3: stop "DE", and the script emits the one token "DEF"."""
    checker = StopChecker(["DE"])
    assert _run(byte_level_tokenizer(["AB", "C", "DEF", "G"]), [0, 1, 2, 3], checker) == ("ABC", 3)
    assert checker.stop_string == "DE"


def test_no_token_counts_after_the_one_that_completes_the_stop_string() -> None:
    """Case 4: "stop" spelled by the third and fourth token."""
    tokenizer = byte_level_tokenizer(["x", "y", "st", "op!", "z"])
    checker = StopChecker(["stop"])
    assert _run(tokenizer, [0, 1, 2, 3, 4], checker) == ("xy", 4)


def test_a_hidden_special_token_takes_no_text_with_it() -> None:
    """Case 5: the token that stopped is hidden; the text before it stays whole."""
    tokenizer = byte_level_tokenizer(["real ", "text"], special=["<|a-long-special-token|>"])
    assert _run(tokenizer, [0, 1, 2], StopChecker([])) == ("real text", 3)
    assert _run(tokenizer, [0, 1, 2], StopChecker(["<|a-long"])) == ("real text", 3)


def test_a_stop_letter_that_never_comes_changes_nothing() -> None:
    """Case 6."""
    assert _run(byte_level_tokenizer(["ab", "c"]), [0, 1, 0], StopChecker(["z"])) == ("abcab", 3)


def test_a_stop_string_before_min_tokens_is_passed_over_and_a_later_one_stops() -> None:
    """Case 7: min_tokens=5, the stop string at token 2 and again at token 6."""
    tokenizer = byte_level_tokenizer(["a", "STOP", "b"])
    script = [0, 1, 2, 0, 2, 1, 0]
    assert _run(tokenizer, script, StopChecker(["STOP"]), min_tokens=5) == ("aSTOPbab", 6)


def test_a_passed_over_stop_string_is_shown_at_once() -> None:
    checker = StopChecker(["ab"])
    assert checker.feed("xa", armed=False) == "x"
    assert checker.feed("bz", armed=False) == "abz"


def test_the_stop_string_is_kept_on_request() -> None:
    checker = StopChecker(["DE"], include_stop_str_in_output=True)
    assert checker.feed("ABCD") == "ABCD"
    assert checker.feed("EF") == "E"
    assert checker.stop_string == "DE"


@pytest.mark.parametrize("stops", [["bc", "abc"], ["abc", "bc"]])
def test_of_stop_strings_that_end_together_the_longest_wins(stops: list[str]) -> None:
    checker = StopChecker(stops)
    assert checker.feed("xabcd") == "x"
    assert checker.stop_string == "abc"


def test_text_after_the_stop_is_dropped() -> None:
    checker = StopChecker(["."])
    assert checker.feed("one. two") == "one"
    assert checker.feed("three") == ""
    assert checker.finish() == ""
