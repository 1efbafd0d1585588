from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tokenizers
from tokenization.toy_tokenizers import byte_level_tokenizer, sentencepiece_metadata
from tokenizers import decoders, models

from jaxllm.errors import ParameterError, UnsupportedModelError
from jaxllm.tokenization import Tokenizer, from_gguf

_SPM = from_gguf(sentencepiece_metadata(["\u2581", "a", "\u2581a"]))


def test_a_text_that_spells_bos_gets_no_second_one() -> None:
    """Case 23: the text of a rendered chat template passed to generate."""
    assert _SPM.encode("a") == [1, _SPM.backend.token_to_id("\u2581a")]
    assert _SPM.encode("<s>a") == _SPM.encode("a")
    assert _SPM.encode("<s><s>a")[:3] == [1, 1, _SPM.backend.token_to_id("\u2581a")]
    assert _SPM.encode("<s>a", add_special_tokens=False)[:1] == [1]
    assert _SPM.encode("<s>a", parse_special=False).count(1) == 1


def test_special_tokens_in_text_are_parsed_or_plain(smollm2: Tokenizer) -> None:
    text = "<|im_start|>user"
    parsed, plain = smollm2.encode(text), smollm2.encode(text, parse_special=False)
    assert parsed[0] == 1
    assert not smollm2.special_token_ids.intersection(plain)
    assert smollm2.decode(plain) == text
    assert smollm2.decode(parsed, skip_special_tokens=False) == text


def test_a_batch_encodes_as_its_texts_do(smollm2: Tokenizer) -> None:
    texts = ["one", "", "two <|im_end|>", "3 4"]
    assert smollm2.encode_batch(texts) == [smollm2.encode(text) for text in texts]


def test_threads_that_parse_special_tokens_do_not_disturb_those_that_do_not(smollm2: Tokenizer) -> None:
    text = "a<|im_end|>b"
    expected = {parse: smollm2.encode(text, parse_special=parse) for parse in (True, False)}
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: (i % 2 == 0, smollm2.encode(text, parse_special=i % 2 == 0)), range(400)))
    assert all(ids == expected[parse] for parse, ids in results)


def test_token_text_shows_every_byte() -> None:
    """Case 25: neither "" nor U+FFFD for the pieces of a character, and ``token_bytes`` has the bytes."""
    sloth = "🦥".encode()
    tokenizer = byte_level_tokenizer([" Paris", sloth[:3], sloth[3:], b"ok\xf0"], special=["<|end|>"])
    shown = [tokenizer.token_text(token_id) for token_id in range(6)]
    assert shown == [" Paris", r"\xf0\x9f\xa6", r"\xa5", r"ok\xf0", "<|end|>", ""]
    assert tokenizer.token_bytes(1) + tokenizer.token_bytes(2) == sloth
    assert _SPM.token_text(_SPM.backend.token_to_id("\u2581a")) == " a"
    assert _SPM.token_text(3 + 0x0A) == "\n"
    assert _SPM.token_text(3 + 0xE6) == r"\xe6"


def test_facts_about_smollm2(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert (smollm2.bos_token_id, smollm2.eos_token_id, smollm2.pad_token_id) == (1, 2, 2)
    assert smollm2.eos_token_ids == (2, 0)
    assert smollm2.special_token_ids == frozenset(range(17))
    assert smollm2.unused_token_ids == frozenset()
    assert smollm2.chat_template is not None


def test_ids_without_a_token_are_named_and_give_no_text() -> None:
    """Case 22: a hole in the ids is something that a sampler must not choose."""
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([tokenizers.AddedToken("<x>", special=True)])
    tokenizer = Tokenizer(backend, unused_token_ids=[1])
    assert tokenizer.vocab_size == 3
    assert tokenizer.unused_token_ids == {1}
    assert tokenizer.decode([0, 3, 999, 0]) == "aa"


@pytest.mark.parametrize("ids", [[-1], [1.5], [True], ["a"]])
def test_ids_that_are_no_ids_are_refused(ids: list[Any]) -> None:
    with pytest.raises(ParameterError, match="ids"):
        _SPM.decode(ids)


@pytest.mark.parametrize("text", [None, b"bytes", 3, "half a pair \ud83d"])
def test_text_that_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(ParameterError, match="text"):
        _SPM.encode(text)


def test_the_backends_own_truncation_and_padding_are_off() -> None:
    backend = byte_level_tokenizer(["a", "b"]).backend
    backend.enable_truncation(2)
    backend.enable_padding(length=4)
    assert Tokenizer(backend).encode("ababab") == [0, 1, 0, 1, 0, 1]


def test_a_decoder_that_is_not_understood_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    backend.decoder = decoders.CTC()
    with pytest.raises(UnsupportedModelError, match=r"CTC.*ByteLevel"):
        Tokenizer(backend)


def test_spans_are_the_characters_that_each_token_stands_for(smollm2: Tokenizer, gemma3: Tokenizer) -> None:
    text = "The answer is 42\n\n 🙂 ꙮ<|im_end|>é"
    for tokenizer in (smollm2, gemma3):
        ids, spans = tokenizer.encode_with_spans(text)
        assert ids == tokenizer.encode(text)
        assert (spans[0] is None) == (ids[0] == 2 and tokenizer is gemma3)
        data = b""
        for token, span in zip(ids, spans, strict=True):
            if span is not None:
                data += tokenizer.token_bytes(token)
                # All of the text to the end of the span, but for bytes of its last character that are still to come.
                assert text[: span[1]].encode().startswith(data)
                assert len(text[: span[1] - 1].encode()) < len(data)
        assert data.decode() == text


def test_spans_match_when_the_text_spells_the_bos_that_would_be_added(gemma3: Tokenizer) -> None:
    ids, spans = gemma3.encode_with_spans("<bos>a")
    assert ids == gemma3.encode("a")
    assert spans == [(0, 5), (5, 6)]


def test_a_pickled_tokenizer_reads_and_writes_the_same(smollm2: Tokenizer) -> None:
    """Outputs that report the whole vocabulary refer to it."""
    made = pickle.loads(pickle.dumps(smollm2))
    text = "<|im_start|>user\nnaïve 🤗<|im_end|>"
    ids = smollm2.encode(text)
    assert made.encode(text) == ids
    assert made.decode(ids, skip_special_tokens=False) == text
    assert made.token_text(ids[0]) == smollm2.token_text(ids[0])
    messages = [{"role": "user", "content": "hi"}]
    assert made.apply_chat_template(messages) == smollm2.apply_chat_template(messages)


def test_what_refers_to_a_tokenizer_is_copied_without_it(smollm2: Tokenizer) -> None:
    assert copy.deepcopy([smollm2])[0] is smollm2
