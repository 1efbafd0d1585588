"""Token ids equal llama.cpp's. Oracle: ids recorded from llama.cpp's vocabulary code; exact equality."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.tokenization import Tokenizer

_GOLDEN = Path(__file__).parent.parent / "golden"
_MODELS = ("smollm2", "gemma3")
_WAYS = {
    "ids": {"add_special_tokens": False, "parse_special": False},
    "ids_special": {"add_special_tokens": False, "parse_special": True},
    "ids_bos": {"add_special_tokens": True, "parse_special": True},
}


def _items(model: str) -> list[dict[str, Any]]:
    return json.loads((_GOLDEN / f"tokens_{model}.json").read_text())["items"]


@pytest.mark.parametrize("way", _WAYS)
@pytest.mark.parametrize("model", _MODELS)
def test_token_ids_equal_llama_cpp(model: str, way: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(model)
    items = _items(model)
    assert items
    for item in items:
        assert tokenizer.encode(item["text"], **_WAYS[way]) == item[way], item["text"]


@pytest.mark.parametrize("model", _MODELS)
def test_decoding_plain_ids_gives_the_text_back(model: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(model)
    for item in _items(model):
        assert tokenizer.decode(item["ids"]) == item["text"]


def test_smollm2_prompts_and_outputs_agree_with_hugging_face(smollm2: Tokenizer) -> None:
    items = json.loads((_GOLDEN / "smollm2_hf_f32.json").read_text())["items"]
    assert {item["kind"] for item in items} >= {"chat", "plain"}
    for item in items:
        if item["kind"] == "chat":
            messages = [{"role": "user", "content": item["text"]}]
            assert smollm2.apply_chat_template(messages) == item["prompt_ids"]
        elif item["kind"] == "plain":
            assert smollm2.encode(item["text"]) == item["prompt_ids"]
        assert smollm2.decode(item["output_ids"], skip_special_tokens=False) == item["output_text"]


def test_smollm2_splits_every_digit(smollm2: Tokenizer) -> None:
    assert smollm2.encode("2024") == [smollm2.encode(digit)[0] for digit in "2024"]
