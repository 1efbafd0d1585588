from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenization.toy_tokenizers import byte_level_tokenizer, sentencepiece_metadata
from tokenizers import AddedToken, decoders, models

from jaxllm.tokenization import IncrementalDetokenizer, Tokenizer, from_gguf
from jaxllm.tokenization.pieces import Pieces

REPLACEMENT = "\ufffd"
_EVERY_BYTE = [bytes([byte]) for byte in range(256)]
_BYTES = byte_level_tokenizer([*_EVERY_BYTE, "the", " the", "é", "🙂🏽"], special=["<s>", "<e>"])
_SPM = from_gguf(sentencepiece_metadata(["\u2581", "a", "\u2581a", "\u2581\u2581", "東", "e\u0301", "\u2581the", "🙂"]))
_NO_PREFIX = {"tokenizer.ggml.add_space_prefix": False}
_GEMMA_LIKE = from_gguf(sentencepiece_metadata(["\u2581", "a", "\u2581a"], **_NO_PREFIX))


def _word_level(decoder: Any) -> Tokenizer:
    words = ["a", "dog", ".", "'s", "n't", "is", "\u2581cat", "\u2581", ","]
    backend = tokenizers.Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="a"))
    backend.decoder = decoder
    backend.add_tokens([AddedToken("<x>", special=True), AddedToken("<y>", special=True)])
    return Tokenizer(backend)


_TOKENIZERS = {
    "bytes": _BYTES,
    "sentencepiece": _SPM,
    "sentencepiece without prefix": _GEMMA_LIKE,
    "words": _word_level(None),
    "metaspace": _word_level(decoders.Metaspace()),
    "metaspace without prefix": _word_level(decoders.Metaspace(prepend_scheme="never")),
}


def _streamed(tokenizer: Tokenizer, chunks: Sequence[Sequence[int]], **options: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    deltas = [detokenizer.append(chunk) for chunk in chunks]
    assert detokenizer.text == "".join(deltas)
    deltas.append(detokenizer.finish())
    assert detokenizer.text == "".join(deltas)
    return deltas


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", _TOKENIZERS)
def test_streamed_text_equals_decode_however_the_tokens_arrive(name: str, data: st.DataObject) -> None:
    tokenizer = _TOKENIZERS[name]
    ids = st.integers(0, tokenizer.vocab_size + 2)
    chunks = data.draw(st.lists(st.lists(ids, max_size=4), max_size=12))
    options = {name: data.draw(st.booleans()) for name in ("skip_special_tokens", "spaces_between_special_tokens")}
    flat = [token_id for chunk in chunks for token_id in chunk]
    assert "".join(_streamed(tokenizer, chunks, **options)) == tokenizer.decode(flat, **options)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", _TOKENIZERS)
def test_decode_equals_the_tokenizers_library(name: str, data: st.DataObject) -> None:
    """Oracle: ``tokenizers``' own decode, but for invalid byte runs under byte fallback (see the test below)."""
    tokenizer = _TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=16))
    skip = data.draw(st.booleans())
    expected = tokenizer.backend.decode(ids, skip_special_tokens=skip)
    if name.startswith("sentencepiece") and REPLACEMENT in expected:
        return
    assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


@settings(max_examples=80, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=20), skip=st.booleans())
def test_decode_of_smollm2_ids_equals_the_tokenizers_library(smollm2: Tokenizer, ids: list[int], skip: bool) -> None:
    assert smollm2.decode(ids, skip_special_tokens=skip) == smollm2.backend.decode(ids, skip_special_tokens=skip)


_COMPOSED = ["👩‍👩‍👧‍👦", "🇯🇵🇫🇷", "e\u0301\u0327", "مَرْحَبًا", "नमस्ते", "\u200f\ufeff"]


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=30) | st.sampled_from(_COMPOSED))
def test_text_streamed_byte_by_byte_never_shows_a_broken_character(text: str) -> None:
    deltas = _streamed(_BYTES, [[byte] for byte in text.encode()])
    assert "".join(deltas) == text
    assert REPLACEMENT in text or not any(REPLACEMENT in delta for delta in deltas)


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs", "Cc"]), max_size=30))
def test_smollm2_text_survives_encoding_and_streaming(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text, parse_special=False)
    assert "".join(_streamed(smollm2, [[token_id] for token_id in ids])) == text


def test_an_incomplete_character_appears_only_at_the_end(smollm2: Tokenizer) -> None:
    """Case 24: an emoji of 3 tokens, and a script that stops after 2 of them."""
    ids = smollm2.encode("🦥")
    assert len(ids) == 3
    assert _streamed(smollm2, [[token_id] for token_id in ids]) == ["", "", "🦥", ""]
    cut = smollm2.encode("ok ") + ids[:2]
    assert _streamed(smollm2, [cut]) == ["ok ", REPLACEMENT]
    assert smollm2.decode(cut) == "ok " + REPLACEMENT


def test_a_broken_character_does_not_break_its_neighbours_under_byte_fallback() -> None:
    """The ``tokenizers`` library replaces the whole run of byte tokens, which a stream has already shown."""
    byte = [3 + value for value in "東".encode()]
    assert _SPM.decode([*byte, *byte[:2], *byte]) == "東" + REPLACEMENT + "東"
    assert _streamed(_SPM, [byte, byte[:2], byte]) == ["東", "", REPLACEMENT + "東", ""]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["\u2581a", "\u2581a"], "a a"),
        (["\u2581", "\u2581a"], " a"),
        (["\u2581\u2581", "a"], " a"),
        (["</s>", "\u2581a"], "a"),
        (["a", "\u2581a"], "a a"),
    ],
)
def test_one_leading_space_is_dropped_as_in_decode(tokens: list[str], expected: str) -> None:
    ids = [_SPM.backend.token_to_id(token) for token in tokens]
    assert "".join(_streamed(_SPM, [[token_id] for token_id in ids])) == expected
    assert _SPM.backend.decode(ids) == expected


def test_special_tokens_are_hidden_or_shown() -> None:
    first, second = _BYTES.special_token_ids
    script = [[first], [256], [second, first], [257]]
    assert "".join(_streamed(_BYTES, script)) == "the the"
    assert "".join(_streamed(_BYTES, script, skip_special_tokens=False)) == "<s>the<e><s> the"


def test_spaces_between_special_tokens_can_be_removed() -> None:
    tokenizer = _TOKENIZERS["words"]
    x, y = sorted(tokenizer.special_token_ids)
    script = [[0, x], [y, 1], [y]]
    assert "".join(_streamed(tokenizer, script, skip_special_tokens=False)) == "a <x> <y> dog <y>"
    joined = _streamed(tokenizer, script, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert "".join(joined) == "a <x><y> dog <y>"


def test_each_token_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cost per token does not grow with the text: there are as many lookups as tokens."""
    lookups: list[int] = []
    original = Pieces.inner
    monkeypatch.setattr(Pieces, "inner", lambda self, token_id: lookups.append(token_id) or original(self, token_id))
    detokenizer = IncrementalDetokenizer(_BYTES)
    for position in range(2000):
        assert len(detokenizer.append([256 + position % 3])) > 0
    assert len(lookups) == 2000
