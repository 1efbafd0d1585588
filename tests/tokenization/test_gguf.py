from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenization.toy_tokenizers import sentencepiece_metadata

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.tokenization import from_gguf

_PIECES = ["\u2581", "a", "b", "\u2581a", "ab"]


def _byte_level(**overrides: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": ["a", "b", "c", "ab", "abc", "<|im_end|>", "<think>", "[PAD7]"],
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1, 4, 5],
    }
    return {**metadata, **overrides}


def test_numbers_may_come_as_numpy_arrays() -> None:
    metadata = sentencepiece_metadata(_PIECES)
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        metadata[key] = np.array(metadata[key])
    assert from_gguf(metadata).encode("ab a") == from_gguf(sentencepiece_metadata(_PIECES)).encode("ab a")


def test_a_space_goes_before_text_at_the_start_and_after_a_special_token() -> None:
    tokenizer = from_gguf(sentencepiece_metadata(_PIECES))
    space_a = tokenizer.backend.token_to_id("\u2581a")
    assert tokenizer.encode("a") == [1, space_a]
    assert tokenizer.encode("a</s>a") == [1, space_a, 2, space_a]


def test_no_space_is_added_where_the_file_says_so() -> None:
    tokenizer = from_gguf(sentencepiece_metadata(_PIECES, **{"tokenizer.ggml.add_space_prefix": False}))
    assert tokenizer.encode("a") == [1, tokenizer.backend.token_to_id("a")]
    assert tokenizer.decode([tokenizer.backend.token_to_id("\u2581a")]) == " a"


def test_characters_outside_the_vocabulary_become_bytes() -> None:
    tokenizer = from_gguf(sentencepiece_metadata(_PIECES, **{"tokenizer.ggml.add_space_prefix": False}))
    assert tokenizer.encode("é", add_special_tokens=False) == [3 + 0xC3, 3 + 0xA9]


@pytest.mark.parametrize(
    ("add_bos", "add_eos", "expected"),
    [(True, True, [1, "text", 2]), (False, True, ["text", 2]), (True, False, [1, "text"]), (False, False, ["text"])],
)
def test_bos_and_eos_are_added_as_the_file_says(add_bos: bool, add_eos: bool, expected: list[Any]) -> None:
    flags = {"tokenizer.ggml.add_bos_token": add_bos, "tokenizer.ggml.add_eos_token": add_eos}
    tokenizer = from_gguf(sentencepiece_metadata(_PIECES, **flags))
    text = tokenizer.encode("a", add_special_tokens=False)
    assert tokenizer.encode("a") == [*(text[0] if part == "text" else part for part in expected)]
    assert tokenizer.encode("") == [part for part in expected if part != "text"]


def test_bos_is_added_by_default_where_llama_cpp_does() -> None:
    llama3 = from_gguf(_byte_level(**{"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": 6}))
    assert llama3.encode("a") == [6, 0]
    assert from_gguf(_byte_level(**{"tokenizer.ggml.bos_token_id": 6})).encode("a") == [0]
    assert from_gguf(sentencepiece_metadata(_PIECES)).encode("")[:1] == [1]


def test_ignore_merges_takes_whole_tokens() -> None:
    merges = {"tokenizer.ggml.merges": ["b c"], "tokenizer.ggml.tokens": ["a", "b", "c", "bc", "abc", "x", "y", "z"]}
    assert from_gguf(_byte_level(**merges)).encode("abc") == [0, 3]
    llama3 = from_gguf(_byte_level(**merges, **{"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": 5}))
    assert llama3.encode("abc", add_special_tokens=False) == [4]


def test_token_types_say_what_is_found_in_text_and_what_is_hidden() -> None:
    tokenizer = from_gguf(_byte_level())
    assert tokenizer.encode("a<think>b<|im_end|>") == [0, 6, 1, 5]
    # A user-defined token is found even where special tokens are plain text; an end token is special in any file.
    plain = tokenizer.encode("a<think>b<|im_end|>", parse_special=False)
    assert plain[:3] == [0, 6, 1]
    assert 5 not in plain
    assert tokenizer.decode([0, 6, 1, 5]) == "a<think>b"
    assert tokenizer.eos_token_ids == (5,)
    assert tokenizer.unused_token_ids == {7}


def test_every_end_of_turn_and_end_of_text_token_ends_a_generation() -> None:
    tokens = ["a", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"]
    metadata = _byte_level(**{
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [1, 3, 3, 3],
        "tokenizer.ggml.eos_token_id": 3,
    })
    tokenizer = from_gguf(metadata)
    assert tokenizer.eos_token_id == 3
    assert set(tokenizer.eos_token_ids) == {1, 2, 3}


def test_named_chat_templates_are_read() -> None:
    templates = {
        "tokenizer.chat_template": "default {{ messages[0].content }}",
        "tokenizer.chat_templates": ["rag"],
        "tokenizer.chat_template.rag": "rag {{ messages[0].content }}",
    }
    tokenizer = from_gguf(_byte_level(**templates))
    messages = [{"role": "user", "content": "x"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "default x"
    assert tokenizer.apply_chat_template(messages, tokenize=False, chat_template="rag") == "rag x"


def test_the_harmony_formats_end_of_message_does_not_end_a_generation() -> None:
    tokens = ["a", "<|end|>", "<|return|>", "<|call|>"]
    lists = {"tokenizer.ggml.merges": [], "tokenizer.ggml.token_type": [1, 3, 3, 3]}
    harmony = from_gguf(_byte_level(**lists, **{"tokenizer.ggml.tokens": tokens}))
    assert harmony.eos_token_ids == (2, 3)
    other = from_gguf(_byte_level(**lists, **{"tokenizer.ggml.tokens": ["a", "<|end|>", "b", "c"]}))
    assert other.eos_token_ids == (1,)


def test_phi_3s_special_tokens_swallow_the_space_behind_them() -> None:
    types = [2, 3, 3] + [6] * 256 + [1] * 3 + [3]
    changes = {"tokenizer.ggml.token_type": types, "general.name": "Phi-3 mini"}
    pieces = ["\u2581", "a", "\u2581a", "<|user|>"]
    phi3 = from_gguf(sentencepiece_metadata(pieces, **changes))
    space_a = phi3.backend.token_to_id("\u2581a")
    assert phi3.encode("<|user|>\n  a") == phi3.encode("<|user|>a") == [1, 262, space_a]
    other = from_gguf(sentencepiece_metadata(pieces, **{**changes, "general.name": "Other"}))
    assert other.encode("<|user|>\n  a") != other.encode("<|user|>a")


def test_a_file_without_a_pre_tokenizers_name_is_read_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre"):
        tokenizer = from_gguf(_byte_level(**{"tokenizer.ggml.pre": None}))
    assert tokenizer.encode("abc") == from_gguf(_byte_level(**{"tokenizer.ggml.pre": "default"})).encode("abc")


@pytest.mark.parametrize("name", ["bos", "eos"])
def test_a_token_to_add_that_the_file_does_not_name_is_an_error(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"{name}_token_id"):
        from_gguf(_byte_level(**{f"tokenizer.ggml.add_{name}_token": True}))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModelError, "'bert'.*'gpt2'.*'llama'"),
        ({"tokenizer.ggml.model": None}, UnsupportedModelError, "None"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"]}, CheckpointError, "'a' more than once"),
        ({"tokenizer.ggml.token_type": [1, 1]}, CheckpointError, "token_type has 2 entries for 8 tokens"),
        ({"tokenizer.ggml.eos_token_id": 8}, CheckpointError, "eos_token_id=8 is outside"),
        ({"tokenizer.ggml.merges": ["a z"]}, CheckpointError, "merges"),
    ],
)
def test_a_bad_vocabulary_is_refused(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        from_gguf(_byte_level(**changes))


@pytest.mark.parametrize("key", ["tokenizer.ggml.tokens", "tokenizer.ggml.merges"])
def test_a_missing_list_is_named(key: str) -> None:
    metadata = _byte_level()
    del metadata[key]
    with pytest.raises(CheckpointError, match=key):
        from_gguf(metadata)
