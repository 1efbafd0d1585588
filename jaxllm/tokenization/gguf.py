"""Tokenizers from GGUF metadata (``tokenizer.ggml.*``), with the token ids that llama.cpp gives."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.tokenization.boundaries import boundary_tokens
from jaxllm.tokenization.gguf_vocabulary import BYTE, CONTROL, UNKNOWN, UNUSED, GGUFVocabulary, metadata_list
from jaxllm.tokenization.pretokenizers import PreTokenizer, pre_tokenizer
from jaxllm.tokenization.spm import merges_from_scores
from jaxllm.tokenization.tokenizer import Tokenizer


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Byte-level BPE (``tokenizer.ggml.model`` "gpt2", cut into pieces as ``tokenizer.ggml.pre`` says) and SentencePiece
    BPE ("llama") are supported. Decoded text is what the tokens say: llama.cpp's ``clean_spaces`` is not applied, as
    its own generation, piece by piece, does not apply it. Raises ``UnsupportedModelError`` for other tokenizers,
    ``CheckpointError`` for metadata that is missing or inconsistent.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"tokenizer.ggml.model={model!r} is not supported: "
            "'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) are"
        )
    vocabulary = GGUFVocabulary(metadata)
    # The ids and add_bos are llama.cpp's, for files that do not say.
    if model == "gpt2":
        pre = _pre_tokenizer(metadata)
        backend = _byte_level_bpe(metadata, vocabulary, pre)
        add_bos, default_ids = pre.add_bos, {"bos": 11, "eos": 11}
    else:
        backend = _sentencepiece_bpe(metadata, vocabulary)
        add_bos, default_ids = True, {"bos": 1, "eos": 2, "unknown": 0}
    roles = ("bos", "eos", "unknown", "padding", "eot", "eom")
    bos, eos, unknown, pad, eot, eom = (vocabulary.special_id(role, default_ids.get(role)) for role in roles)
    backend.add_tokens(vocabulary.added_tokens())
    backend.post_processor = boundary_tokens(
        _required(bos, "bos") if metadata.get("tokenizer.ggml.add_bos_token", add_bos) else None,
        _required(eos, "eos") if metadata.get("tokenizer.ggml.add_eos_token", False) else None,
    )
    named = {"bos_token": bos, "eos_token": eos, "unk_token": unknown, "pad_token": pad}
    return Tokenizer(
        backend,
        bos_token_id=bos,
        eos_token_ids=[token_id for token_id in (eos, eot, eom, *vocabulary.end_ids()) if token_id is not None],
        pad_token_id=pad,
        special_tokens={name: vocabulary.tokens[token_id] for name, token_id in named.items() if token_id is not None},
        chat_template=_chat_templates(metadata),
        special_token_ids=vocabulary.special_ids(),
        unused_token_ids=vocabulary.ids_of_type(UNUSED),
    )


def _pre_tokenizer(metadata: Mapping[str, Any]) -> PreTokenizer:
    name = metadata.get("tokenizer.ggml.pre")
    if not name:
        warnings.warn(
            "the GGUF file does not name its pre-tokenizer (tokenizer.ggml.pre), as old conversions do not: the "
            "'default' one is used, and answers may be worse for it. A newer conversion of the model has the name.",
            stacklevel=3,
        )
    return pre_tokenizer(name or "default")


def _required(token_id: int | None, name: str) -> int:
    if token_id is None:
        raise CheckpointError(
            f"the model's prompts take {name.upper()}, but the file has no tokenizer.ggml.{name}_token_id; "
            f"tokenizer.ggml.add_{name}_token = false would leave it out"
        )
    return token_id


def _byte_level_bpe(metadata: Mapping[str, Any], vocabulary: GGUFVocabulary, pre: PreTokenizer) -> tokenizers.Tokenizer:
    merges = []
    for merge in metadata_list(metadata, "tokenizer.ggml.merges"):
        space = merge.find(" ", 1)
        merges.append((merge[:space], merge[space + 1 :]))
    try:
        model = models.BPE(vocabulary.ids, merges, ignore_merges=pre.ignore_merges)
    except Exception as error:  # tokenizers raises bare Exception
        raise CheckpointError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from None
    backend = tokenizers.Tokenizer(model)
    splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in pre.patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece_bpe(metadata: Mapping[str, Any], vocabulary: GGUFVocabulary) -> tokenizers.Tokenizer:
    scores = metadata_list(metadata, "tokenizer.ggml.scores", len(vocabulary.tokens))
    # Text must never become one of these by merging.
    reserved = vocabulary.ids_of_type(UNKNOWN, CONTROL, BYTE)
    merges = merges_from_scores(vocabulary.ids, scores, reserved)
    unknown_id = vocabulary.special_id("unknown", 0)
    unknown = None if unknown_id is None else vocabulary.tokens[unknown_id]
    model = models.BPE(vocabulary.ids, merges, unk_token=unknown, byte_fallback=True)
    backend = tokenizers.Tokenizer(model)
    add_space_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    escape: list[normalizers.Normalizer] = [normalizers.Replace(" ", "\u2581")]
    unescape: list[decoders.Decoder] = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    if add_space_prefix:
        escape.insert(0, normalizers.Prepend("\u2581"))
        unescape.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(escape)
    backend.decoder = decoders.Sequence(unescape)
    return backend


def _chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    templates = {name: metadata[f"{prefix}.{name}"] for name in metadata.get("tokenizer.chat_templates", ())}
    if prefix in metadata:
        templates["default"] = metadata[prefix]
    return templates
