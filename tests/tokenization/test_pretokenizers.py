from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from jaxllm.errors import UnsupportedModelError
from jaxllm.tokenization import from_gguf
from jaxllm.tokenization.pretokenizers import known_pre_tokenizers, pre_tokenizer


def _pieces(name: str, text: str) -> list[str]:
    splits = [pre_tokenizers.Split(tokenizers.Regex(p), "isolated") for p in pre_tokenizer(name).patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


@pytest.mark.parametrize("name", known_pre_tokenizers())
def test_every_pre_tokenizer_cuts_text_without_losing_any(name: str) -> None:
    text = "Hello, WORLD's x1234567 naïve ÀÉ  \t東京 カタ 안녕 don't\r\n\n  {x}=3.14; स्त 🙂🏽 <sentinel:3> \n"
    pieces = _pieces(name, text)
    assert "".join(pieces) == text
    assert len(pieces) > 3


@given(st.text(alphabet="aZé1² \t\n\r'sLl.,!東ア한🙂\u0301\u00a0", max_size=40))
def test_representative_pre_tokenizers_lose_no_text(text: str) -> None:
    for name in ("smollm", "llama-bpe", "qwen2", "deepseek-llm", "deepseek-v3", "tekken", "falcon", "viking"):
        assert "".join(_pieces(name, text)) == text


# What each expression says by hand, on the places where the families differ: digits, contractions, spaces.
@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("smollm", "a 123  b", ["a", " ", "1", "2", "3", " ", " b"]),
        ("gpt-2", "a 123  b", ["a", " 123", " ", " b"]),
        ("llama-bpe", "a 12345  b", ["a", " ", "123", "45", " ", " b"]),
        ("qwen2", "a 123\n\n b", ["a", " ", "1", "2", "3", "\n\n", " b"]),
        ("llama-bpe", "IT'S we'll", ["IT", "'S", " we", "'ll"]),
        ("gpt-2", "IT'S we'll", ["IT", "'", "S", " we", "'ll"]),
        ("ufakzeka", "we'll", ["we", "'ll"]),
        ("falcon", "x=12345", ["x", "=", "123", "45"]),
        ("default", "x=12345", ["x", "=", "123", "45"]),
        ("deepseek-llm", "ab 123\nc", ["ab", " ", "123", "\n", "c"]),
        ("deepseek-coder", "ab 12", ["ab", " ", "1", "2"]),
        ("deepseek-v3", "1234漢字ab", ["123", "4", "漢字", "ab"]),
        ("tekken", "HelloWorld", ["Hello", "World"]),
        ("gpt-4o", "HelloWorld's", ["Hello", "World's"]),
        ("viking", "ab12, c", ["ab", "1", "2", ",", " c"]),
        ("seed-coder", "++\n", ["++", "\n"]),
        ("qwen2", "++\n", ["++\n"]),
        ("minicpm5", "x12345", ["x", "123", "45"]),
        ("jais-2", "a" + " " * 7 + "b", ["a", " " * 4, " " * 2, " b"]),
    ],
)
def test_pieces_are_those_the_expressions_say(name: str, text: str, expected: list[str]) -> None:
    assert _pieces(name, text) == expected


def test_an_unknown_pre_tokenizer_is_refused_by_name(smollm2_metadata: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'no-such-pre'.*llama-bpe.*smollm"):
        from_gguf({**smollm2_metadata, "tokenizer.ggml.pre": "no-such-pre"})
