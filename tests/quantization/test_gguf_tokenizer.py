"""Hugging Face tokenizers as GGUF metadata: the same ids, or a reason. Oracle: the original."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from quantization.small_tokenizers import LLAMA3, byte_level, sentencepiece
from tiny_folder import CHAT_TEMPLATE, SPECIAL, write_tiny_folder
from tokenizers import models, normalizers, pre_tokenizers, processors

from jaxllm.errors import UnsupportedModelError
from jaxllm.quantization.gguf_tokenizer import tokenizer_metadata
from jaxllm.quantization.tokenizer_files import tokenizer_files
from jaxllm.tokenization import load_tokenizer
from jaxllm.weights import SafetensorsSource, resolve

TEXTS = ["the 123 the", "It's  the\n\nend 12345", "  leading", f"a{SPECIAL[2]}the", "\u4e2d\u6587 na\u00efve"]


def source_with(tmp_path, backend, config=None, ends=None):
    path = write_tiny_folder(tmp_path / "tiny")
    backend.save(str(path / "tokenizer.json"))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    if ends is not None:
        (path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return SafetensorsSource(path)


def llama3_pieces():
    return pre_tokenizers.Sequence([pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


@pytest.mark.parametrize(("backend", "pre"), [
    (byte_level(), "gpt-2"),
    (byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                         pre_tokenizers.ByteLevel(add_prefix_space=False)])), "smollm"),
    (byte_level(llama3_pieces(), ignore_merges=True), "llama-bpe"),
    (sentencepiece(), None),
])
def test_ids_are_the_same(tmp_path, backend, pre):
    source = source_with(tmp_path, backend)
    if pre is None:
        (source.path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    metadata = tokenizer_metadata(source, 280)
    assert metadata.get("tokenizer.ggml.pre") == pre
    ours, theirs = load_tokenizer(metadata), load_tokenizer(source.path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.decode(ours.encode(text)) == theirs.decode(theirs.encode(text))
    assert set(ours.eos_token_ids) >= set(theirs.eos_token_ids)  # and those that end a text in llama.cpp
    assert ours.bos_token_id == theirs.bos_token_id


def test_the_packaged_model_s_metadata_come_back(tmp_path):
    original = resolve("SmolLM2-135M-Instruct")
    path = tmp_path / "folder"
    path.mkdir()
    for name, content in tokenizer_files(original).items():
        (path / name).write_bytes(content)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    found = tokenizer_metadata(_at(path), 49152)
    for name in ("tokens", "merges", "pre", "model", "bos_token_id", "eos_token_id", "add_bos_token"):
        assert found[f"tokenizer.ggml.{name}"] == original.metadata[f"tokenizer.ggml.{name}"], name
    np.testing.assert_array_equal(found["tokenizer.ggml.token_type"], original.metadata["tokenizer.ggml.token_type"])
    assert found["tokenizer.chat_template"] == original.metadata["tokenizer.chat_template"]


def _at(path):
    """A source of which only the place counts."""
    source = SafetensorsSource.__new__(SafetensorsSource)
    source.path = path
    return source


def test_rows_without_a_token_are_unused(tmp_path):
    metadata = tokenizer_metadata(source_with(tmp_path, byte_level()), 270)
    assert metadata["tokenizer.ggml.tokens"][-1] == "[PAD269]"
    assert set(load_tokenizer(metadata).unused_token_ids) == set(range(264, 270))


def test_what_is_put_around_texts_is_said(tmp_path):
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(single="A $A B", special_tokens=[("A", 262), ("B", 263)])
    source = source_with(tmp_path, backend, {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2]})
    metadata = tokenizer_metadata(source, 264)
    assert metadata["tokenizer.ggml.add_bos_token"]
    assert metadata["tokenizer.ggml.add_eos_token"]
    assert load_tokenizer(metadata).encode("the") == load_tokenizer(source.path).encode("the")


def test_templates_and_further_ends_come_along(tmp_path):
    config = {"eos_token": SPECIAL[2], "chat_template": [{"name": "default", "template": CHAT_TEMPLATE},
                                                        {"name": "tools", "template": "{{ tools }}"}]}
    source = source_with(tmp_path, byte_level(), config, ends=[5, 263, 6])
    tokenizer = load_tokenizer(tokenizer_metadata(source, 264))
    assert tokenizer.chat_templates == {"default": CHAT_TEMPLATE, "tools": "{{ tools }}"}
    assert set(tokenizer.eos_token_ids) >= {5, 6, 263}
    with pytest.raises(UnsupportedModelError, match="3 more tokens end a generation than GGUF can name"):
        tokenizer_metadata(source_with(tmp_path, byte_level(), config, ends=[5, 6, 7]), 264)


def other_scores():
    """SentencePiece's merges, of which one is missing."""
    described = json.loads(sentencepiece().to_str())
    described["model"]["merges"] = described["model"]["merges"][:-1]
    return tokenizers.Tokenizer.from_str(json.dumps(described))


def normalized():
    backend = byte_level()
    backend.normalizer = normalizers.Lowercase()
    return backend


def surrounded():
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(single="X $A", special_tokens=[("X", 7)])
    return backend


@pytest.mark.parametrize(("backend", "message"), [
    (tokenizers.Tokenizer(models.WordLevel({"a": 0, "<|im_end|>": 1}, "a")), "it is WordLevel; byte-level and Sent"),
    (normalized(), r"it normalizes texts \(Lowercase"),
    (byte_level(pre_tokenizers.Sequence([pre_tokenizers.Split("e", "isolated"),
                                         pre_tokenizers.ByteLevel(add_prefix_space=False)])), "none of GGUF's pre-tok"),
    (byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), "none of GGUF's pre-tokenizers cuts texts"),
    (surrounded(), r"it puts the tokens \[7\] around texts"),
    (other_scores(), "its merges are not those that scores of tokens lead to"),
])
def test_what_gguf_cannot_say_is_refused_with_the_reason(tmp_path, backend, message):
    config = {} if "<unk>" in backend.get_vocab() else None
    with pytest.raises(UnsupportedModelError, match=f"cannot be written into a .gguf file: {message}"):
        tokenizer_metadata(source_with(tmp_path, backend, config), 280)


def test_more_tokens_than_the_model_has_rows_are_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="it has 264 tokens, and the model 260"):
        tokenizer_metadata(source_with(tmp_path, byte_level()), 260)


def test_another_id_for_any_text_is_refused(tmp_path, monkeypatch):
    """A vocabulary whose metadata have been changed behind its back."""
    from jaxllm.quantization import gguf_tokenizer

    monkeypatch.setattr(gguf_tokenizer, "_joined_merges", lambda model, where: ["t h", "th e"])
    with pytest.raises(UnsupportedModelError, match="would become the tokens"):
        tokenizer_metadata(source_with(tmp_path, byte_level()), 264)
