from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.tokenization.cleanup import SpaceCleaner, clean_up_spaces


def test_spaces_before_punctuation_and_contractions_go() -> None:
    assert clean_up_spaces("He 's here , is n't he ? Yes ! They 've won .") == "He's here, isn't he? Yes! They've won."


@settings(max_examples=300, deadline=None)
@given(st.lists(st.text(alphabet=" '.,nstmvrea", max_size=8), max_size=8))
def test_a_stream_is_cleaned_as_the_whole_text(chunks: list[str]) -> None:
    cleaner = SpaceCleaner()
    assert "".join([*(cleaner.push(chunk) for chunk in chunks), cleaner.finish()]) == clean_up_spaces("".join(chunks))


def test_a_long_word_lets_the_text_before_it_go() -> None:
    cleaner = SpaceCleaner()
    assert cleaner.push("so , word") == "so, word"
    assert cleaner.push(" .") == ""
    assert cleaner.finish() == "."
