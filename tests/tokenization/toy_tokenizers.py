"""Small tokenizers whose ids are known by construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from jaxllm.tokenization import Tokenizer


def byte_level_tokenizer(tokens: Sequence[str | bytes], special: Sequence[str] = ()) -> Tokenizer:
    """A GPT-2 style tokenizer whose id ``i`` is ``tokens[i]``, then ``special``: for scripts of ids, not to encode."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}
    contents = [token.encode() if isinstance(token, str) else token for token in tokens]
    vocabulary = {"".join(stand_in[byte] for byte in content): index for index, content in enumerate(contents)}
    if len(vocabulary) != len(tokens):
        raise ValueError("two tokens are the same")
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return Tokenizer(backend)


def sentencepiece_metadata(pieces: Sequence[str], **overrides: Any) -> dict[str, Any]:
    """GGUF metadata of a byte-fallback vocabulary: <unk>, <s>, </s>, 256 bytes, then ``pieces`` by falling score."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(index) for index in range(len(pieces))],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return {**metadata, **overrides}
