"""The index finds what a search through the whole text finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.speculative.ngram import NgramIndex, PromptIndex, make_index

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)
BOUNDS = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda pair: (pair[0] + pair[1], pair[0]))


def searched(tokens, longest, shortest):
    """(place, length) of the newest occurrence of the longest n-gram that ends the text, by looking everywhere."""
    for length in range(min(longest, len(tokens)), shortest - 1, -1):
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length:place] == tokens[-length:]:
                return place, length
    return None, 0


@given(prompt=TEXTS, output=TEXTS, bounds=BOUNDS)
def test_wrong_guesses_are_looked_up_anew_longest_first_and_newest_preferred(prompt, output, bounds):
    index, tokens = make_index(prompt, *bounds), list(prompt)
    assert (index.place, index.matched) == searched(tokens, *bounds)
    for token in output:
        index.append(token, guessed=False)
        tokens.append(token)
        assert (index.place, index.matched) == searched(tokens, *bounds)


@given(prompt=TEXTS, output=TEXTS, bounds=BOUNDS)
def test_what_was_matched_really_came_before(prompt, output, bounds):
    index, tokens = make_index(prompt, *bounds), list(prompt)
    for token in output:
        guessed = index.place is not None and tokens[index.place] == token
        index.append(token, guessed=guessed)
        tokens.append(token)
        if index.place is not None:
            assert tokens[index.place - index.matched:index.place] == tokens[-index.matched:]
            assert index.matched >= bounds[1]


def test_a_copy_is_followed_although_its_last_tokens_came_again_elsewhere():
    copied = [1, 2, 3, 4, 9, 5, 6, 7, 8]
    index = make_index([*copied, 3, 4, 9, 0, 1, 2], 3, 2)
    tokens = [*copied, 3, 4, 9, 0, 1, 2]
    for token in (3, 4, 9):
        assert tokens[index.place] == token
        index.append(token, guessed=True)
        tokens.append(token)
    assert index.guess(np.array(tokens), 4).tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize(("prompt", "guess"), [
    ([5, 6, 6], [6, 6, 6, 6, 6]), ([1, 2, 3, 1, 2, 3], [1, 2, 3, 1, 2]), ([4, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2, 1])])
def test_what_repeats_itself_is_guessed_to_go_on_for_ever(prompt, guess):
    assert make_index(prompt, 2, 1).guess(np.array(prompt, np.int32), 5).tolist() == guess


def test_nothing_is_guessed_where_nothing_came_before():
    index = make_index([1, 2, 3], 3, 1)
    assert index.place is None
    assert index.guess(np.array([1, 2, 3]), 4).tolist() == []


def test_samples_share_their_prompt_and_not_their_outputs():
    prompt = np.array([1, 2, 3, 1], np.int32)
    shared = PromptIndex(prompt, 2, 1)
    first, second = NgramIndex(shared), NgramIndex(shared)
    for token in (7, 8, 7):
        first.append(token, guessed=False)
    second.append(7, guessed=False)
    assert first.guess(np.array([1, 2, 3, 1, 7, 8, 7], np.int32), 1).tolist() == [8]
    assert second.place is None


class CountingDict(dict):
    """A dict that counts how often it is asked."""

    asked = 0

    def get(self, key, default=None):
        CountingDict.asked += 1
        return super().get(key, default)


@settings(max_examples=5)
@given(token=st.integers(0, 2**31 - 1))
def test_a_token_takes_as_many_look_ups_after_a_long_text_as_after_a_short_one(token):
    counts = []
    for length in (8, 4000):
        index = make_index(np.arange(length, dtype=np.int32), 4, 2)
        index._next_of = [CountingDict(each) for each in index._next_of]
        CountingDict.asked = 0
        index.append(token, guessed=False)
        counts.append(CountingDict.asked)
    assert counts[0] == counts[1] <= 3
