from __future__ import annotations

import functools

import pytest
from tokenization.conftest import gemma3, smollm2, smollm2_metadata  # noqa: F401
from tokenization.toy_tokenizers import byte_level_tokenizer

from jaxllm.structured import GrammarCompiler, StructuredOutputsParams

EVERY_BYTE = [bytes([byte]) for byte in range(256)]


def compiler_for(tokenizer):
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset(tokenizer.eos_token_ids))


@pytest.fixture(scope="session")
def byte_compiler():
    """Of a vocabulary in which id i is the byte i; 256 and 257 end a sequence, 258 is another special token."""
    tokenizer = byte_level_tokenizer(EVERY_BYTE, special=["<end>", "<stop>", "<tool>"])
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset({256, 257}))


@pytest.fixture(scope="session")
def compile_bytes(byte_compiler):
    """Compile for that vocabulary: ``compile_bytes(regex="a+")``."""
    return lambda **params: byte_compiler.compile(StructuredOutputsParams(**params))


@pytest.fixture(scope="session", params=["smollm2", "gemma3"])
def real(request):
    """The compiler and the tokenizer of a real vocabulary: byte-level BPE, and SentencePiece with byte fallback."""
    tokenizer = request.getfixturevalue(request.param)
    return _compiler_of(request.param, tokenizer), tokenizer


@functools.cache
def _compiler_of(name, tokenizer):
    return compiler_for(tokenizer)
