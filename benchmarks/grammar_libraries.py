"""The grammar libraries that ``grammar_mask.py`` compares: one way to use them all, and what it takes to have them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import statistics
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher

from jaxllm.structured import GrammarCompiler, StructuredOutputsParams
from jaxllm.structured.vocabulary import GrammarVocabulary
from jaxllm.tokenization import Tokenizer


class Matcher(Protocol):
    """One text in one grammar."""

    def mask(self, row: np.ndarray) -> None:
        """Write the mask for the next token."""

    def accept(self, token_id: int) -> bool:
        """Advance; whether the token was allowed."""

    def accepting(self) -> bool:
        """Whether the text is complete."""


class Library(Protocol):
    """A grammar library with its vocabulary, and the 32-bit words of its masks."""

    name: str
    num_words: int

    def compile(self, params: dict[str, Any]) -> Callable[[], Matcher]:
        """A maker of matchers. Raises ``ValueError`` or ``RuntimeError`` if it refuses."""


class _OurMatcher:
    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher
        self.mask = matcher.fill_mask

    def accept(self, token_id: int) -> bool:
        try:
            self.matcher.accept(token_id)
        except RuntimeError:
            return False
        return True

    def accepting(self) -> bool:
        return bool(self.matcher.accepting)


class JaxLLM:
    """``jaxllm.structured``, its cache of compiled grammars not used."""

    name = "jaxllm"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.num_words = -(-tokenizer.vocab_size // 32)
        self.compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset(tokenizer.eos_token_ids))

    def compile(self, params: dict[str, Any]) -> Callable[[], Matcher]:
        self.compiler._compiled.clear()
        grammar = self.compiler.compile(StructuredOutputsParams(**params))
        return lambda: _OurMatcher(grammar.matcher())


class _LLGuidanceMatcher:
    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.accept = matcher.consume_token
        self.accepting = matcher.is_accepting

    def mask(self, row: np.ndarray) -> None:
        self.matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


class LLGuidance:
    """The library itself, for schemas only."""

    name = "llguidance"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.vocabulary = GrammarVocabulary(tokenizer, tokenizer.vocab_size)
        self.num_words = self.vocabulary.num_words

    def compile(self, params: dict[str, Any]) -> Callable[[], Matcher]:
        source = f'start: %json {json.dumps(params["json"])}\n%llguidance {{"no_forcing": true}}'
        fresh = LLMatcher(self.vocabulary.ll_tokenizer, source, log_level=0)
        if fresh.is_error():
            raise ValueError(fresh.get_error())
        return lambda: _LLGuidanceMatcher(fresh.deep_copy())


class _XGrammarMatcher:
    def __init__(self, matcher: Any, stop: int) -> None:
        self.matcher, self.stop = matcher, stop
        self.accept = matcher.accept_token

    def mask(self, row: np.ndarray) -> None:
        self.matcher.fill_next_token_bitmask(row.view(np.int32)[None], 0)

    def accepting(self) -> bool:
        return bool(self.matcher.accept_token(self.stop))


class XGrammar:
    """xgrammar, without its cache of compiled grammars."""

    name = "xgrammar"

    def __init__(self, tokenizer: Tokenizer, module: Any) -> None:
        contents = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        info = module.TokenizerInfo(contents, module.VocabType.RAW, vocab_size=len(contents),
                                    stop_token_ids=list(tokenizer.eos_token_ids))
        self.module, self.stop = module, tokenizer.eos_token_ids[0]
        self.num_words = -(-len(contents) // 32)
        self.compiler = module.GrammarCompiler(info, cache_enabled=False)

    def compile(self, params: dict[str, Any]) -> Callable[[], Matcher]:
        (kind, value), = params.items()
        if kind == "json":
            compiled = self.compiler.compile_json_schema(json.dumps(value), strict_mode=False)
        elif kind == "json_object":
            compiled = self.compiler.compile_json_schema('{"type": "object"}', strict_mode=False)
        elif kind == "regex":
            compiled = self.compiler.compile_regex(value)
        else:
            choices = " | ".join(map(json.dumps, value))
            compiled = self.compiler.compile_grammar(value if kind == "grammar" else f"root ::= {choices}")
        return lambda: _XGrammarMatcher(self.module.GrammarMatcher(compiled), self.stop)


def import_xgrammar() -> Any:
    """The module, ``None`` where it is not installed."""
    try:
        import transformers  # noqa: F401  looks for the real torch
        importlib.import_module("tvm_ffi")  # so does this
    except ImportError:
        return None
    if importlib.util.find_spec("torch") is None:
        stand_in: Any = types.ModuleType("torch")
        stand_in.int32, stand_in.tensor = np.int32, lambda value, dtype: np.asarray(value, dtype)
        stand_in.__getattr__ = _any_class
        sys.modules["torch"] = stand_in
    try:
        return importlib.import_module("xgrammar")
    except ImportError:
        return None


def _any_class(name: str) -> type:
    if name.startswith("__"):
        raise AttributeError(name)
    return object


def import_seconds(module: str, repeat: int) -> float | None:
    """Seconds to import a module in a fresh process, ``None`` where that fails."""
    code = f"import time; started = time.perf_counter(); import {module}; print(time.perf_counter() - started)"
    times = []
    for _ in range(repeat):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode:
            return None
        times.append(float(done.stdout))
    return statistics.median(times)


def weight(name: str, had: set[str]) -> tuple[float, list[str]]:
    """MiB of a distribution with what it requires beyond ``had``, and what of that is not installed."""
    missing: list[str] = []
    total = 0
    waiting, seen = [name], set(had)
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        try:
            distribution = importlib.metadata.distribution(current)
        except importlib.metadata.PackageNotFoundError:
            missing.append(current)
            continue
        paths = [Path(str(file.locate())) for file in distribution.files or ()]
        total += sum(path.stat().st_size for path in paths if path.exists())
        waiting += requirements(distribution)
    return total / 2**20, missing


def requirements(distribution: importlib.metadata.Distribution) -> list[str]:
    """The names of what a distribution requires, optional extras aside."""
    wanted = [line for line in distribution.requires or () if "extra ==" not in line]
    return [re.split(r"[ <>=!~;\[(]", line, maxsplit=1)[0].lower().replace("_", "-") for line in wanted]


def closure(name: str) -> set[str]:
    """A distribution's requirements and theirs, as far as they are installed; the grammar library aside."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in found or current == "llguidance":
            continue
        found.add(current)
        try:
            waiting += requirements(importlib.metadata.distribution(current))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
