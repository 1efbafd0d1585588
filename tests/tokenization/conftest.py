from __future__ import annotations

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
def gemma3() -> Tokenizer:
    return from_gguf(read_header(packaged_file(PACKAGED_MODELS[1])).metadata)
