"""Small tokenizers of the kinds that models have, made with the ``tokenizers`` library."""

from __future__ import annotations

import tokenizers
from tiny_folder import SPECIAL
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
"""As the tokenizer.json of Llama 3 spells it."""


def byte_level(pre_tokenizer=None, **settings):
    """Byte-level BPE with a few merges; by default GPT-2's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("1", "2"), ("12", "3"), ("'", "s")]
    tokens = [*alphabet, *map("".join, merges)]
    backend = tokenizers.Tokenizer(models.BPE({text: index for index, text in enumerate(tokens)}, merges, **settings))
    backend.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(SPECIAL[0], special=True), AddedToken(SPECIAL[2], special=True)])
    return backend


def sentencepiece():
    """BPE with bytes for what it does not know, as that of Llama 2."""
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("\u2581", "t"), ("\u2581t", "he"), ("h", "e")]
    ranked = sorted(dict.fromkeys(map("".join, merges)), key=len)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *ranked, "\u2581", "t", "h", "e"]
    ids = {text: index for index, text in enumerate(tokens)}
    ordered = [(left, right) for text in ranked for cut in range(1, len(text))
               if (left := text[:cut]) in ids and (right := text[cut:]) in ids]
    backend = tokenizers.Tokenizer(models.BPE(ids, ordered, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(text, special=True) for text in tokens[:3]])
    return backend
