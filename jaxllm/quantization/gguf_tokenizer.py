"""A Hugging Face tokenizer as GGUF metadata, or a reason why it cannot be said there.

What is written is read back and compared with the original, on texts that put every kind of character beside every
other: a file either gives the same token ids or is not written.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from jaxllm.errors import UnsupportedModelError
from jaxllm.tokenization import Tokenizer, load_tokenizer
from jaxllm.tokenization.gguf import from_gguf
from jaxllm.tokenization.gguf_vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from jaxllm.tokenization.pretokenizers import known_pre_tokenizers, pre_tokenizer
from jaxllm.tokenization.spm import merges_from_scores
from jaxllm.weights.source import ModelSource

_PREFERRED = ("smollm", "llama-bpe", "qwen2", "gpt-2")
"""Of names that mean the same, those that models of these families have."""

_CHARACTERS = ("a", "Z", "t", "S", "\u00e9", "\u00df", "\u0416", "\u05d0", "\u0e01", "\u0301", "\u4e2d", "\u3042",
               "\ud55c", "5", "0", "\u0663", "\u00bd", "'", "\u2019", ".", ",", "!", "-", "(", "/", "_", "$", "+", "^",
               "~", "\u3002", "\u20ac", " ", "\t", "\n", "\r", "\u00a0", "\u3000", "\u200b", "\U0001f600")
_TEXTS = (
    "Hello world", "  two  spaces ", "\n\n\n", "I'm you'LL he'd IT'S o'clock", "1234567 89 0.5e-3", "a\tb\r\n\r\n c",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u3053\u3093\u306b\u3061\u306f",
    "na\u00efve caf\u00e9 e\u0301 \u2014 \u201cquoted\u201d", "def f(x):\n    return x**2  # !?",
    "https://example.org/?q=a&b=%20", "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f600\U0001f600",
    "MixedCASE words WITHnumbers123abc", " " * 40 + "x" * 40,
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u0939\u093f\u0928\u094d\u0926\u0940",
)


def tokenizer_metadata(source: ModelSource, vocab_size: int) -> dict[str, Any]:
    """The keys ``tokenizer.*`` for a folder's tokenizer. vocab_size: rows of the model's embedding.

    Raises ``UnsupportedModelError`` for a tokenizer that GGUF has no words for, or that would give other ids.
    """
    tokenizer = load_tokenizer(source.path)
    where = f"the tokenizer of {source.path} cannot be written into a .gguf file"
    described = json.loads(tokenizer.backend.to_str())
    model = described["model"]
    if model["type"] != "BPE" or any(model.get(key) for key in ("dropout", "continuing_subword_prefix",
                                                                "end_of_word_suffix")):
        raise UnsupportedModelError(f"{where}: it is {model['type']}; byte-level and SentencePiece BPE can be")
    if not model["merges"]:
        raise UnsupportedModelError(f"{where}: it has no merges, and GGUF no empty lists")
    if tokenizer.vocab_size > vocab_size:
        raise UnsupportedModelError(f"{where}: it has {tokenizer.vocab_size} tokens, and the model {vocab_size}")
    metadata = _vocabulary(tokenizer, model, vocab_size) | _special(tokenizer, where)
    if model.get("byte_fallback"):
        metadata |= _sentencepiece(tokenizer, model, metadata["tokenizer.ggml.tokens"], where)
    else:
        metadata |= _byte_level(tokenizer, model, where)
    metadata |= _templates(tokenizer)
    _check_ends(metadata, tokenizer, where)
    _check_same(from_gguf(metadata), tokenizer, where)
    return metadata


def _vocabulary(tokenizer: Tokenizer, model: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Tokens by id, with their types; ids without a token are unused ones, as in llama.cpp's conversion."""
    tokens = [f"[PAD{index}]" for index in range(vocab_size)]
    types = np.full(vocab_size, UNUSED, np.int32)
    for text, index in model["vocab"].items():
        tokens[index] = text
        is_byte = model.get("byte_fallback") and len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        types[index] = UNKNOWN if text == model.get("unk_token") else BYTE if is_byte else NORMAL
    for index, token in tokenizer.backend.get_added_tokens_decoder().items():
        tokens[index] = token.content
        if types[index] != UNKNOWN:
            types[index] = CONTROL if token.special else USER_DEFINED
    return {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}


def _special(tokenizer: Tokenizer, where: str) -> dict[str, Any]:
    """The ids with a role, and what is put around a text."""
    metadata: dict[str, Any] = {}
    unknown = tokenizer.special_tokens.get("unk_token")
    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "padding": tokenizer.pad_token_id,
           "unknown": None if unknown is None else tokenizer.backend.token_to_id(unknown)}
    metadata |= {f"tokenizer.ggml.{role}_token_id": index for role, index in ids.items() if index is not None}
    plain, whole = (tokenizer.encode("a", add_special_tokens=add) for add in (False, True))
    at = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
    before, behind = whole[:at], whole[at + len(plain) :]
    for name, found, index in (("bos", before, ids["bos"]), ("eos", behind, ids["eos"])):
        if found not in ([], [index]):
            raise UnsupportedModelError(f"{where}: it puts the tokens {found} around texts, which GGUF cannot say")
        metadata[f"tokenizer.ggml.add_{name}_token"] = bool(found)
    return metadata


def _byte_level(tokenizer: Tokenizer, model: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tokenizer.backend.normalizer is not None:
        raise UnsupportedModelError(f"{where}: it normalizes texts ({tokenizer.backend.normalizer!r:.80}), which "
                                    "GGUF's byte-level tokenizers do not")
    return {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": _joined_merges(model, where),
            "tokenizer.ggml.pre": _pre_tokenizer_name(tokenizer.backend, bool(model.get("ignore_merges")), where)}


def _joined_merges(model: Mapping[str, Any], where: str) -> list[str]:
    pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    if any(" " in part for pair in pairs for part in pair):
        raise UnsupportedModelError(f"{where}: a merge has a space in it, and GGUF separates the two by one")
    return [" ".join(pair) for pair in pairs]


def _pre_tokenizer_name(backend: tokenizers.Tokenizer, ignore_merges: bool, where: str) -> str:
    """The name whose pre-tokenizer cuts texts at the same places."""
    texts = [*_TEXTS, *map("".join, itertools.product(_CHARACTERS, repeat=2)), *_some_triples()]
    wanted = None if backend.pre_tokenizer is None else [backend.pre_tokenizer.pre_tokenize_str(text) for text in texts]
    names = known_pre_tokenizers()
    for name in [*(name for name in _PREFERRED if name in names), *names]:
        candidate = pre_tokenizer(name)
        if candidate.ignore_merges != ignore_merges:
            continue
        splits = [pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated") for pattern in candidate.patterns]
        theirs = pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        if wanted is not None and all(theirs.pre_tokenize_str(text) == pieces
                                      for text, pieces in zip(texts, wanted, strict=True)):
            return name
    raise UnsupportedModelError(f"{where}: none of GGUF's pre-tokenizers cuts texts as its own does")


def _some_triples() -> Iterable[str]:
    """Three kinds of characters in a row, with the middle one once and repeatedly."""
    for first, middle, last in itertools.product(_CHARACTERS[::2], _CHARACTERS, _CHARACTERS[1::2]):
        yield first + middle + last
    for first, middle, last in itertools.product(_CHARACTERS[::3], _CHARACTERS, _CHARACTERS[1::3]):
        yield first + middle * 4 + last


def _sentencepiece(tokenizer: Tokenizer, model: Mapping[str, Any], tokens: Sequence[str], where: str
                   ) -> dict[str, Any]:
    """Scores that rank tokens as the merges do: their order is all that BPE takes from SentencePiece's scores."""
    pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    ranks: dict[str, int] = {}
    for left, right in pairs:
        ranks.setdefault(left + right, len(ranks))
    vocabulary = model["vocab"]
    scores = np.full(len(tokens), -1e9, np.float32)
    for text, rank in ranks.items():
        scores[vocabulary[text]] = -float(rank)
    reserved = [index for text, index in vocabulary.items() if text not in ranks]
    if set(merges_from_scores(vocabulary, scores.tolist(), reserved)) != set(pairs):
        raise UnsupportedModelError(f"{where}: its merges are not those that scores of tokens lead to")
    first = tokenizer.backend.encode("a", add_special_tokens=False).tokens[0]
    return {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.add_space_prefix": first.startswith("\u2581")}


def _templates(tokenizer: Tokenizer) -> dict[str, Any]:
    templates = tokenizer.chat_templates
    named = {name: text for name, text in templates.items() if name != "default"}
    metadata: dict[str, Any] = {f"tokenizer.chat_template.{name}": text for name, text in named.items()}
    if named:
        metadata["tokenizer.chat_templates"] = sorted(named)
    if "default" in templates:
        metadata["tokenizer.chat_template"] = templates["default"]
    return metadata


def _check_ends(metadata: dict[str, Any], tokenizer: Tokenizer, where: str) -> None:
    """Name the ends of a generation that the file's texts do not tell."""
    missing = [index for index in tokenizer.eos_token_ids if index not in from_gguf(metadata).eos_token_ids]
    if len(missing) > 2:
        raise UnsupportedModelError(f"{where}: {len(missing)} more tokens end a generation than GGUF can name")
    for role, index in zip(("eot", "eom"), missing, strict=False):
        metadata[f"tokenizer.ggml.{role}_token_id"] = index


def _check_same(written: Tokenizer, original: Tokenizer, where: str) -> None:
    """Raise where the two give other ids for a text, or other bytes for an id."""
    added = [token.content for token in original.backend.get_added_tokens_decoder().values()]
    texts = [*_TEXTS, *(f"a {token}b{token} {token}\n" for token in added[:64]),
             *map("".join, itertools.product(_CHARACTERS, repeat=2))]
    for text, ours, theirs in zip(texts, written.encode_batch(texts), original.encode_batch(texts), strict=True):
        if ours != theirs:
            raise UnsupportedModelError(f"{where}: {text!r:.60} would become the tokens {ours!r:.80}, not "
                                        f"{theirs!r:.80}")
    for index in range(original.vocab_size):
        if index not in original.unused_token_ids and written.token_bytes(index) != original.token_bytes(index):
            raise UnsupportedModelError(f"{where}: token {index} would be {written.token_bytes(index)!r}, not "
                                        f"{original.token_bytes(index)!r}")

