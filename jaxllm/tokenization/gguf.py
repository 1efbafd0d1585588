"""Tokenizers from GGUF metadata (``tokenizer.ggml.*``), with the token ids that llama.cpp gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from jaxllm.errors import CheckpointError, UnsupportedModelError
from jaxllm.tokenization.boundaries import boundary_tokens
from jaxllm.tokenization.pretokenizers import PreTokenizer, pre_tokenizer
from jaxllm.tokenization.spm import merges_from_scores
from jaxllm.tokenization.tokenizer import Tokenizer

# gguf.TokenType
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6

# Texts that end a turn or a document in the model families that GGUF is used for. The files themselves name one end
# token only, often not the one that the chat template uses.
_END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)

# Found in a text only where special tokens are parsed, as the above, but neither ends of a generation nor hidden.
_CONTROL_TEXTS = (
    "</s>", "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>",
    "<|code_prefix|>", "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>",
    "<SUF>", "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>", "<|fim_middle|>", "<fim-middle>", "<fim_middle>",
    "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>", "<|code_middle|>", "<|middle|>", "<|fim_pad|>", "<fim-pad>",
    "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
)


def from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes.

    Byte-level BPE (``tokenizer.ggml.model`` "gpt2", cut into pieces as ``tokenizer.ggml.pre`` says) and SentencePiece
    BPE ("llama") are supported. Raises ``UnsupportedModelError`` for others, ``CheckpointError`` for metadata that is
    missing or inconsistent.
    """
    model = metadata.get("tokenizer.ggml.model")
    if model not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"tokenizer.ggml.model={model!r} is not supported: "
            "'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) are"
        )
    vocabulary = _Vocabulary(metadata)
    if model == "gpt2":
        # A file without a name is an old one; llama.cpp reads it in the same way.
        pre = pre_tokenizer(metadata.get("tokenizer.ggml.pre") or "default")
        backend = _byte_level_bpe(metadata, vocabulary, pre)
        add_bos = pre.add_bos
        bos, eos, unknown = 11, 11, None
    else:
        backend = _sentencepiece_bpe(metadata, vocabulary)
        add_bos = True
        bos, eos, unknown = 1, 2, 0
    bos_id = vocabulary.special_id("bos", bos)
    eos_id = vocabulary.special_id("eos", eos)
    unknown_id = vocabulary.special_id("unknown", unknown)
    pad_id = vocabulary.special_id("padding", None)
    add_bos = metadata.get("tokenizer.ggml.add_bos_token", add_bos)
    add_eos = metadata.get("tokenizer.ggml.add_eos_token", False)
    backend.add_tokens(vocabulary.added_tokens())
    backend.post_processor = boundary_tokens(bos_id if add_bos else None, eos_id if add_eos else None)
    named = {"bos_token": bos_id, "eos_token": eos_id, "unk_token": unknown_id, "pad_token": pad_id}
    return Tokenizer(
        backend,
        bos_token_id=bos_id,
        eos_token_ids=vocabulary.end_ids(eos_id),
        pad_token_id=pad_id,
        special_tokens={name: vocabulary.tokens[i] for name, i in named.items() if i is not None},
        chat_template=_chat_templates(metadata),
        special_token_ids=vocabulary.special_ids(),
        unused_token_ids=vocabulary.ids_of_type(_UNUSED),
    )


class _Vocabulary:
    """The token lists of the metadata, checked."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        listed = _list(metadata, "tokenizer.ggml.tokens")
        self.tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(listed)]
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for index, token in enumerate(self.tokens) if self.ids[token] != index)
            raise CheckpointError(f"tokenizer.ggml.tokens holds {twice!r} more than once")
        self.types: Sequence[int] = [1] * len(self.tokens)
        if "tokenizer.ggml.token_type" in metadata:
            self.types = _list(metadata, "tokenizer.ggml.token_type", len(self.tokens))

    def ids_of_type(self, *types: int) -> list[int]:
        return [index for index, kind in enumerate(self.types) if kind in types]

    def special_id(self, name: str, default: int | None) -> int | None:
        """The id in ``tokenizer.ggml.{name}_token_id``, or llama.cpp's default where the vocabulary reaches it."""
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in self._metadata:
            return default if default is not None and default < len(self.tokens) else None
        token_id = int(self._metadata[key])
        if not 0 <= token_id < len(self.tokens):
            raise CheckpointError(f"{key}={token_id} is outside the vocabulary of {len(self.tokens)} tokens")
        return token_id

    def end_ids(self, eos_id: int | None) -> list[int]:
        named = [eos_id, self.special_id("eot", None), self.special_id("eom", None)]
        return [*(token_id for token_id in named if token_id is not None), *self._present(_END_TEXTS)]

    def special_ids(self) -> set[int]:
        """The tokens that are no part of a text: control, unknown, and end tokens whatever the file calls them."""
        return {*self.ids_of_type(_UNKNOWN, _CONTROL), *self._present(_END_TEXTS)}

    def added_tokens(self) -> list[AddedToken]:
        """The tokens found in a text before anything else: always, or (``special``) where special tokens are parsed."""
        special = self.special_ids().union(self._present(_CONTROL_TEXTS))
        return [
            AddedToken(self.tokens[index], special=index in special, normalized=False)
            for index in sorted(special.union(self.ids_of_type(_USER_DEFINED)))
        ]

    def _present(self, texts: Sequence[str]) -> list[int]:
        return [self.ids[text] for text in texts if text in self.ids]


def _byte_level_bpe(metadata: Mapping[str, Any], vocabulary: _Vocabulary, pre: PreTokenizer) -> tokenizers.Tokenizer:
    merges = []
    for merge in _list(metadata, "tokenizer.ggml.merges"):
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


def _sentencepiece_bpe(metadata: Mapping[str, Any], vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    scores = _list(metadata, "tokenizer.ggml.scores", len(vocabulary.tokens))
    # Text must never become one of these by merging.
    reserved = vocabulary.ids_of_type(_UNKNOWN, _CONTROL, _BYTE)
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


def _list(metadata: Mapping[str, Any], key: str, length: int | None = None) -> list[Any]:
    if key not in metadata:
        raise CheckpointError(f"the GGUF file has no {key}: it holds no usable tokenizer")
    values = metadata[key]
    # Readers give arrays of numbers as numpy arrays, whose elements are slow to take one by one.
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    if length is not None and len(values) != length:
        raise CheckpointError(f"{key} has {len(values)} entries for {length} tokens")
    return values
