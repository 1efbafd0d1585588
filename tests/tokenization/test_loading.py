from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenization.toy_tokenizers import byte_level_tokenizer, sentencepiece_metadata
from tokenizers import models, pre_tokenizers, processors

from jaxllm.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from jaxllm.tokenization import from_folder, from_gguf, load_tokenizer

_TEXTS = ["ab ba", "<s>a</s>", "", " a<x>b"]
_TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
_MESSAGES = [{"role": "user", "content": "ab"}]


def _folder(path: Path, config: dict[str, Any] | None = None, **files: Any) -> Path:
    """A model folder: tokenizer.json of a byte vocabulary with <s>, </s>, and further JSON files by stem."""
    backend = byte_level_tokenizer([bytes([byte]) for byte in range(256)], special=["<s>", "</s>"]).backend
    backend.save(str(path / "tokenizer.json"))
    for stem, content in {"tokenizer_config": config or {}, **files}.items():
        (path / f"{stem}.json").write_text(json.dumps(content))
    return path


def _named(**more: Any) -> dict[str, Any]:
    eos = {"__type": "AddedToken", "content": "</s>", "special": True, "normalized": False}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": eos, **more}


@pytest.mark.parametrize("template", ["$A", "<s> $A", "<s> $A </s>"])
def test_ids_text_and_prompts_equal_those_of_transformers(tmp_path: Path, template: str) -> None:
    """Oracle: transformers reading the same folder; what tokenizer.json adds wins over the flags beside it."""
    import transformers

    added = {"258": {"content": "<x>", "special": False, "normalized": False}}
    flags = {"add_bos_token": True, "add_eos_token": False}
    folder = _folder(tmp_path, _named(chat_template=_TEMPLATE, added_tokens_decoder=added, **flags))
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = [("<s>", 256), ("</s>", 257)]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
    backend.save(str(folder / "tokenizer.json"))
    theirs, ours = transformers.AutoTokenizer.from_pretrained(str(folder)), from_folder(folder)
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_token_id, theirs.eos_token_id) == (256, 257)
    assert ours.vocab_size == len(theirs) == 259
    for text in _TEXTS:
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        ids = theirs.encode(text)
        # The one difference: a text that spells BOS gets no second one.
        assert ours.encode(text) == (ids[1:] if ids[:2] == [256, 256] else ids)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.apply_chat_template(_MESSAGES, tokenize=False) == theirs.apply_chat_template(
        _MESSAGES, tokenize=False, add_generation_prompt=True
    )


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [97]),
        ({"add_bos_token": True}, [256, 97]),
        ({"add_eos_token": True}, [97, 257]),
        ({"add_bos_token": True, "add_eos_token": True}, [256, 97, 257]),
    ],
)
def test_the_flags_decide_where_tokenizer_json_does_not(
    tmp_path: Path, flags: dict[str, bool], expected: list[int]
) -> None:
    assert from_folder(_folder(tmp_path, _named(**flags))).encode("a") == expected


def test_ordinary_tokens_with_a_role_are_special(tmp_path: Path) -> None:
    """Oracle: transformers, on a vocabulary that holds EOS and a token the configuration calls special as ordinary."""
    import transformers

    special_z = {"122": {"content": "z", "special": True, "normalized": False, "lstrip": True}}
    folder = _folder(tmp_path, {**_named(added_tokens_decoder=special_z), "eos_token": "a"})
    theirs, ours = transformers.AutoTokenizer.from_pretrained(str(folder)), from_folder(folder)
    assert ours.special_token_ids == {ord("a"), ord("z"), 256, 257}
    for text in ("banana  z<s>b", "b</s>"):
        assert ours.encode(text) == theirs.encode(text)
        for skip in (True, False):
            decoded = ours.decode(ours.encode(text), skip_special_tokens=skip)
            assert decoded == theirs.decode(theirs.encode(text), skip_special_tokens=skip)


def test_special_tokens_map_names_what_the_configuration_does_not(tmp_path: Path) -> None:
    more = {"bos_token": "a", "eos_token": "b"}
    tokenizer = from_folder(_folder(tmp_path, {"bos_token": "<s>"}, special_tokens_map=more))
    assert tokenizer.bos_token_id == 256
    assert tokenizer.eos_token_id == ord("b")
    assert tokenizer.pad_token_id is None


@pytest.mark.parametrize(("listed", "expected"), [([5, 257], (257, 5)), (7, (257, 7)), (None, (257,))])
def test_every_end_id_of_the_generation_config_counts(tmp_path: Path, listed: Any, expected: tuple[int, ...]) -> None:
    tokenizer = from_folder(_folder(tmp_path, _named(), generation_config={"eos_token_id": listed}))
    assert tokenizer.eos_token_ids == expected


def test_chat_templates_come_from_the_configuration_or_from_files(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B{{ tools and '' }}"}]
    folder = _folder(tmp_path, _named(chat_template=named))
    assert from_folder(folder).apply_chat_template(_MESSAGES, tokenize=False) == "A"
    assert from_folder(folder).apply_chat_template(_MESSAGES, tools=[{"name": "f"}], tokenize=False) == "B"
    (folder / "chat_template.jinja").write_text("C")
    assert from_folder(folder).chat_template == "C"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("D")
    assert from_folder(folder).apply_chat_template(_MESSAGES, chat_template="rag", tokenize=False) == "D"


@pytest.mark.parametrize("clean_up", [True, False])
def test_spaces_are_cleaned_up_after_words_only(tmp_path: Path, clean_up: bool) -> None:
    """Oracle: transformers, which never cleans up after BPE."""
    import transformers

    config = _named(clean_up_tokenization_spaces=clean_up)
    words = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "yes": 2, ".": 3, "n't": 4}, unk_token="yes"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "words").mkdir()
    (tmp_path / "bpe").mkdir()
    words.save(str(tmp_path / "words" / "tokenizer.json"))
    (tmp_path / "words" / "tokenizer_config.json").write_text(json.dumps(config))
    _folder(tmp_path / "bpe", config)
    for name, ids in {"words": [2, 4, 3, 2], "bpe": list(b"yes n't . yes")}.items():
        theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path / name))
        assert from_folder(tmp_path / name).decode(ids) == theirs.decode(ids)
    cleaned = from_folder(tmp_path / "words").decode([2, 4, 3, 2])
    assert cleaned == ("yesn't. yes" if clean_up else "yes n't . yes")


def test_a_byte_fallback_tokenizer_json_reads_as_its_gguf_does(tmp_path: Path) -> None:
    gguf = from_gguf(sentencepiece_metadata(["\u2581", "a", "b", "\u2581a"]))
    gguf.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(_named()))
    folder = from_folder(tmp_path)
    for text in _TEXTS:
        assert folder.encode(text) == gguf.encode(text)
        assert folder.decode(folder.encode(text)) == gguf.decode(gguf.encode(text))


def test_a_sentencepiece_model_is_converted(tmp_path: Path) -> None:
    """Oracle: the sentencepiece library on the same model."""
    import sentencepiece

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\nthe dog sat on the log\na cat and a dog\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "tokenizer"), vocab_size=300, model_type="bpe",
        byte_fallback=True, minloglevel=2, hard_vocab_limit=False,
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    ours = from_folder(tmp_path)
    for text in ["the cat sat", "a log and a mat", "dög"]:
        ids = ours.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == text
    assert (ours.bos_token_id, ours.eos_token_id) == (theirs.bos_id(), theirs.eos_id())


def test_a_slow_tokenizer_without_transformers_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedModelError, match=r"jaxllm\[transformers\]"):
        from_folder(tmp_path)


def test_a_slow_tokenizer_that_cannot_be_converted_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not a model")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    with pytest.raises(UnsupportedModelError, match="could not convert"):
        from_folder(tmp_path)


def test_a_folder_without_a_tokenizer_names_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tokenizer\.json, tokenizer\.model"):
        from_folder(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no folder"):
        from_folder(tmp_path / "missing")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizers library"),
        ("tokenizer_config.json", "{", "valid JSON"),
        ("tokenizer_config.json", "[]", "list, not an object"),
        ("tokenizer_config.json", '{"eos_token": "<nowhere>"}', "eos_token '<nowhere>'"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"300": {"content": "<y>"}}}', "'<y>' the id 300"),
    ],
)
def test_a_file_that_cannot_be_right_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    folder = _folder(tmp_path)
    (folder / name).write_text(content)
    with pytest.raises(CheckpointError, match=message):
        from_folder(folder)


@pytest.mark.parametrize(
    "value", [5, ["x"], {"x": {"content": "<x>"}}, {"258": {}}, {"258": "<x>"}, {"258": {"content": 5}}])
def test_added_tokens_that_cannot_be_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointError, match="added_tokens_decoder"):
        from_folder(_folder(tmp_path, _named(added_tokens_decoder=value)))


@pytest.mark.parametrize("value", [["x"], [{"name": "x"}], [{"template": "x"}], [{"name": "x", "template": 5}]])
def test_templates_without_names_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(CheckpointError, match="chat_template"):
        from_folder(_folder(tmp_path, _named(chat_template=value)))


def test_a_padding_token_outside_the_vocabulary_is_left_out(tmp_path: Path) -> None:
    assert from_folder(_folder(tmp_path, _named(pad_token="<nowhere>"))).pad_token_id is None


def test_load_tokenizer_takes_folders_and_gguf_metadata(tmp_path: Path) -> None:
    assert load_tokenizer(_folder(tmp_path)).vocab_size == 258
    assert load_tokenizer(sentencepiece_metadata(["a"])).vocab_size == 260


def test_reading_tokenizer_json_does_not_import_transformers(tmp_path: Path) -> None:
    import subprocess

    code = (
        f"import sys; from jaxllm.tokenization import from_folder; from_folder({str(_folder(tmp_path, _named()))!r}); "
        "sys.exit('transformers' in sys.modules or 'jax' in sys.modules or 'jinja2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
