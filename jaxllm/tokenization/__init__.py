"""Text to token ids and back: tokenizers, incremental detokenization, chat templates and stop strings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxllm.tokenization.detokenizer import IncrementalDetokenizer
    from jaxllm.tokenization.gguf import from_gguf
    from jaxllm.tokenization.loading import from_folder, load_tokenizer
    from jaxllm.tokenization.stop import StopChecker
    from jaxllm.tokenization.tokenizer import Tokenizer

_HOMES = {
    "IncrementalDetokenizer": "detokenizer",
    "StopChecker": "stop",
    "Tokenizer": "tokenizer",
    "from_folder": "loading",
    "from_gguf": "gguf",
    "load_tokenizer": "loading",
}

__all__ = [
    "IncrementalDetokenizer",
    "StopChecker",
    "Tokenizer",
    "from_folder",
    "from_gguf",
    "load_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
