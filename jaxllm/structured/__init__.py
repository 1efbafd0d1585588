"""Structured outputs: JSON schemas, regular expressions, choices and grammars as masks over the vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxllm.structured.grammar import Grammar, GrammarCompiler, GrammarMatcher, fill_masks
    from jaxllm.structured.params import StructuredOutputsParams

_HOMES = {
    "Grammar": "grammar",
    "GrammarCompiler": "grammar",
    "GrammarMatcher": "grammar",
    "StructuredOutputsParams": "params",
    "fill_masks": "grammar",
}

__all__ = ["Grammar", "GrammarCompiler", "GrammarMatcher", "StructuredOutputsParams", "fill_masks"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
